import { createParser, type EventSourceMessage } from "eventsource-parser";

import { ConnectionFailed, errorOf } from "./errors.js";
import type { EndEvent, Execution, NoteEvent, OutputEvent, Problem } from "./schema.gen.js";
import { delay, sleep } from "./send.js";

/** An event of a stream: output, a message, the state of an execution, or the end. */
export type Event =
  | { event: "output"; data: OutputEvent }
  | { event: "note"; data: NoteEvent }
  | { event: "status"; data: Execution }
  | { event: "end"; data: Execution | EndEvent };

const known = ["output", "note", "status", "end"];

/**
 * Yields the events of a stream until its end. A stream that breaks is continued after its last event.
 * @param open Opens the stream after an event.
 * @param maxRetries How often it is opened again without a new event.
 * @param timeout Milliseconds without any data after which it counts as broken; the server sends some every 15 s.
 */
export async function* events(
  open: (lastEventId: string | undefined) => Promise<ReadableStream<Uint8Array>>,
  maxRetries: number,
  timeout: number,
): AsyncGenerator<Event> {
  let last: string | undefined;
  for (let failures = 0; ; failures++) {
    const body = await open(last);
    let broken: unknown = new ConnectionFailed("the stream ended before its last event");
    const messages: EventSourceMessage[] = [];
    const parser = createParser({ onEvent: (message) => messages.push(message) });
    const decoder = new TextDecoder();
    const reader = body.getReader();
    try {
      for (let more = true; more; ) {
        try {
          const chunk = await withTimeout(reader.read(), timeout);
          more = !chunk.done;
          parser.feed(decoder.decode(chunk.value, { stream: more }));
        } catch (error) {
          broken = new ConnectionFailed(String(error), { cause: error });
          more = false;
        }
        for (const { id, event, data } of messages.splice(0)) {
          if (id && id !== last) {
            last = id;
            failures = 0;
          }
          if (event === "error") throw errorOf(JSON.parse(data) as Problem);
          if (event && known.includes(event)) yield { event, data: JSON.parse(data) } as Event;
          if (event === "end") return;
        }
      }
    } finally {
      reader.cancel().catch(() => {}); // it may have broken
    }
    if (failures >= maxRetries) throw broken;
    await sleep(delay(failures));
  }
}

async function withTimeout<T>(promise: Promise<T>, milliseconds: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no data for ${milliseconds / 1000} s`)), milliseconds);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
