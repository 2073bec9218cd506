// The main job through the published TypeScript client: node journey.mjs BASE_URL.
// Prints one JSON object on success; any exception is a failure.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ apiKey: "journey", baseURL: process.argv[2] });

const agent = await client.beta.agents.create({
  name: "journey",
  model: "demo",
  tools: [{ type: "agent_toolset_20260401" }],
});
const environment = await client.beta.environments.create({
  name: "journey",
  config: { type: "cloud", networking: { type: "unrestricted" } },
});
const session = await client.beta.sessions.create({ agent: agent.id, environment_id: environment.id });
assert.equal(session.status, "idle");

const streamed = [];
const stream = await client.beta.sessions.events.stream(session.id);
await client.beta.sessions.events.send(session.id, {
  events: [{ type: "user.message", content: [{ type: "text", text: "Write a small script, run it and read its result." }] }],
});
for await (const event of stream) {
  streamed.push(event);
  if (event.type === "session.status_idle") break;
}
stream.controller.abort();
assert.equal(streamed.at(-1).stop_reason.type, "end_turn");

const listed = [];
for await (const event of client.beta.sessions.events.list(session.id, { limit: 3 })) listed.push(event);
assert.deepEqual(listed.map((event) => event.id), streamed.map((event) => event.id));

let found = false;
for await (const one of client.beta.sessions.list({ limit: 5 })) found ||= one.id === session.id;
assert.ok(found);
await assert.rejects(client.beta.sessions.retrieve("sess_00000000000000000000000000"), { status: 404 });
console.log(JSON.stringify({ types: streamed.map((event) => event.type) }));
