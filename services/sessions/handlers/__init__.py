"""The rpcs of the sessions service: one method, one transaction, one answer."""
