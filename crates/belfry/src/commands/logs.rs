//! `run logs`: what a run printed, each stream to its own, once or until the run ends.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use belfry_core::RunId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Context, read, runs};
use crate::client::{Query, RunAnswer, ServerEvent};
use crate::exit::Exit;
use crate::print::short_duration;

/// A server that restarts is back within this; then the follower gives up and says so.
const RECONNECTS_MAX: u32 = 30;
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
struct Chunk {
    attempt: u32,
    stream: String,
    /// In everything that the attempt printed.
    offset: u64,
    #[serde(default)]
    dropped_bytes: u64,
    text: Option<String>,
    base64: Option<String>,
}

/// How far a follower is. What is not kept comes once, while it is printed; what is kept of it comes again when the run ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    attempt: u32,
    until: u64,
}

impl Told {
    /// The bytes left out before the chunk, and the bytes of it, that were not told yet.
    fn new_of<'a>(&mut self, chunk: &Chunk, bytes: &'a [u8]) -> (u64, &'a [u8]) {
        if self.attempt != chunk.attempt {
            *self = Told { attempt: chunk.attempt, until: 0 };
        }
        // A gap stands where it begins, with nothing behind it; or before the chunk that follows it.
        let gap = if bytes.is_empty() { chunk.dropped_bytes } else { 0 };
        let left_out = (chunk.offset + gap).saturating_sub(self.until);
        let known = self.until.saturating_sub(chunk.offset).min(bytes.len() as u64);
        self.until = self.until.max(chunk.offset + gap + bytes.len() as u64);
        (left_out, &bytes[known as usize..])
    }
}

impl Chunk {
    fn bytes(&self) -> anyhow::Result<Cow<'_, [u8]>> {
        Ok(match (&self.text, &self.base64) {
            (Some(text), _) => text.as_bytes().into(),
            (None, Some(encoded)) => from_base64(encoded)
                .ok_or_else(|| anyhow::anyhow!("the server sent output that cannot be decoded"))?
                .into(),
            (None, None) => Cow::Borrowed(&[]),
        })
    }

    fn write(&self, left_out: u64, bytes: &[u8]) -> anyhow::Result<()> {
        if left_out > 0 {
            writeln!(io::stderr().lock(), "\n… {left_out} bytes left out …")?;
        }
        if self.stream == "stderr" {
            io::stderr().lock().write_all(bytes)?;
        } else {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()?;
        }
        Ok(())
    }
}

/// What is stored now.
pub async fn print(run: RunId, attempt: Option<u32>, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let id = run.to_string();
    let mut query: Query = attempt.map(|attempt| ("attempt", attempt.to_string())).into_iter().collect();
    let mut whole: Option<Value> = None;
    loop {
        let mut answer = client.get(&["runs", &id, "output"], &query).await?;
        if !context.print.json {
            for chunk in read::<Vec<Chunk>>(&answer["chunks"])? {
                chunk.write(chunk.dropped_bytes, &chunk.bytes()?)?;
            }
        }
        let next = answer["next"].as_u64();
        // A retry may have begun between two pages; all pages are of one attempt.
        query = vec![("attempt", answer["attempt"].to_string())];
        query.extend(next.map(|from| ("from", from.to_string())));
        match (&mut whole, context.print.json) {
            (Some(whole), true) => {
                let more = answer["chunks"].as_array_mut().map(std::mem::take).unwrap_or_default();
                if let Some(chunks) = whole["chunks"].as_array_mut() {
                    chunks.extend(more);
                }
                whole["next"] = answer["next"].take();
            }
            (None, true) => whole = Some(answer),
            (_, false) => {}
        }
        if next.is_none() {
            break;
        }
    }
    if let Some(whole) = whole {
        context.print.json(&whole)?;
        return Ok(Exit::Done);
    }
    let run: RunAnswer = read(&client.get(&["runs", &id], &Vec::new()).await?)?;
    if !run.is_ended() {
        context.print.say(&format!("({} {}; follow it with -f)", run.id, run.state));
    }
    Ok(Exit::Done)
}

/// Until the run ends; a connection that breaks is taken up again behind what was printed.
pub async fn follow(run: RunId, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let id = run.to_string();
    let path = ["runs", id.as_str(), "stream"];
    let mut seen: Option<String> = None;
    let mut told = Told::default();
    let mut events = client.events(&path, None).await?;
    let mut reconnects = 0;
    loop {
        while let Some(event) = events.next().await {
            if let Some(ended) = tell(&event, &mut told, context)? {
                return Ok(runs::exit_of(&ended));
            }
            if event.id.is_some() {
                seen = event.id;
                reconnects = 0;
            }
        }
        events = loop {
            reconnects += 1;
            tokio::time::sleep(RECONNECT_DELAY).await;
            match client.events(&path, seen.as_deref()).await {
                Ok(events) => break events,
                Err(error) if error.is_transient() && reconnects < RECONNECTS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        };
        if reconnects >= RECONNECTS_MAX {
            anyhow::bail!("the server ends the stream again and again; look at the run with: belfry run show {id}");
        }
    }
}

/// Prints what an event says; the run if this was its end.
fn tell(event: &ServerEvent, told: &mut Told, context: &Context) -> anyhow::Result<Option<RunAnswer>> {
    let data: Value = serde_json::from_str(&event.data)?;
    if context.print.json {
        context.print.line(&json!({ "event": event.name, "data": data }).to_string())?;
    }
    match event.name.as_str() {
        "output" if !context.print.json => {
            let chunk: Chunk = read(&data)?;
            let bytes = chunk.bytes()?;
            let (left_out, bytes) = told.new_of(&chunk, &bytes);
            chunk.write(left_out, bytes)?;
        }
        "state" => {
            let run: RunAnswer = read(&data)?;
            if run.state == "waiting" {
                context.print.say(&format!(
                    "attempt {} ended ({}); the next one is due at {}",
                    run.attempt,
                    run.reason.unwrap_or_default(),
                    context.print.moment(run.next_attempt_at)
                ));
            }
        }
        "end" => {
            let run: RunAnswer = read(&data)?;
            context.print.say(&last_words(&run));
            return Ok(Some(run));
        }
        // `broken`: the server cannot go on; the connection ends and is taken up again.
        _ => {}
    }
    Ok(None)
}

fn last_words(run: &RunAnswer) -> String {
    let after = run
        .duration_ms
        .map_or_else(String::new, |ms| format!(" after {}", short_duration(Duration::from_millis(ms.unsigned_abs()))));
    let why = run.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("run {} {}{after}{why}", run.id, run.outcome())
}

/// The standard alphabet, padded. None for anything else.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let symbols = text.trim_end_matches('=').bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0u32, 0);
    for symbol in symbols {
        held = held << 6 | ALPHABET.iter().position(|known| *known == symbol)? as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_come_back_as_they_were() {
        for (text, bytes) in
            [("", &b""[..]), ("/w==", b"\xff"), ("AP8=", b"\0\xff"), ("Zm9v", b"foo"), ("Zm9vYmE=", b"fooba")]
        {
            assert_eq!(from_base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(from_base64("Zm9v YmE"), None);
    }

    #[test]
    fn what_was_seen_as_it_was_printed_is_not_printed_again_from_what_is_kept() {
        let mut told = Told::default();
        let mut tell = |offset, dropped_bytes, text: &str| {
            let stream = "stdout".to_owned();
            let chunk = Chunk { attempt: 1, stream, offset, dropped_bytes, text: None, base64: None };
            let (left_out, new) = told.new_of(&chunk, text.as_bytes());
            (left_out, String::from_utf8_lossy(new).into_owned())
        };
        assert_eq!(tell(0, 0, "head"), (0, "head".into()));
        assert_eq!(tell(4, 0, "live"), (0, "live".into()));
        assert_eq!(tell(10, 0, "more"), (2, "more".into()), "a piece was not shown while it was printed");
        // With its end come the gap in what is kept, and the tail.
        assert_eq!(tell(4, 8, ""), (0, String::new()));
        assert_eq!(tell(12, 0, "re and the end"), (0, " and the end".into()));
    }

    #[test]
    fn the_outcome_is_told_in_one_line() {
        let run = json!({
            "id": "01J00000000000000000000000", "namespace": "default", "job_name": "a", "revision": 1, "command": "false",
            "state": "failed", "reason": "it exited with 3", "trigger": "schedule", "attempt": 1, "planned": "2026-07-01T00:00:00.000Z",
            "duration_ms": 1500, "exit_code": 3,
        });
        let run: RunAnswer = read(&run).unwrap();
        assert_eq!(last_words(&run), "run 01J00000000000000000000000 failed (exit 3) after 1.5s: it exited with 3");
        assert_eq!(runs::exit_of(&run), Exit::Failed);
    }
}
