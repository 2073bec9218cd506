"""What several handlers of the vault do: renew tokens, ask foreign servers, tell what happened, seal anew."""
