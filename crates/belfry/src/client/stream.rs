//! Server-sent events: from bytes as they come to events.

use std::collections::VecDeque;
use std::time::Duration;

/// The server says something every 15 s; a connection that is silent for longer than this is gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Larger than any event of the API; what is longer is no event stream.
const LINE_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// `message` when the server gave no name.
    pub name: String,
    pub id: Option<String>,
    pub data: String,
}

#[derive(Debug)]
pub struct EventStream {
    response: reqwest::Response,
    parser: EventParser,
    ready: VecDeque<ServerEvent>,
}

impl EventStream {
    pub(super) fn new(response: reqwest::Response) -> Self {
        Self { response, parser: EventParser::default(), ready: VecDeque::new() }
    }

    /// None when the connection has ended, whatever the reason: the caller knows whether the last event was the last.
    pub async fn next(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let bytes = tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await.ok()?.ok()??;
            self.parser.push(&bytes, &mut self.ready)?;
        }
    }
}

#[derive(Debug, Default)]
struct EventParser {
    line: Vec<u8>,
    event: ServerEvent,
    has_data: bool,
}

impl EventParser {
    /// None when this is no event stream.
    fn push(&mut self, bytes: &[u8], ready: &mut VecDeque<ServerEvent>) -> Option<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > LINE_BYTES_MAX {
                return None;
            }
            if part.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                ready.extend(self.read_line(line.trim_end_matches(['\n', '\r'])));
            }
        }
        Some(())
    }

    fn read_line(&mut self, line: &str) -> Option<ServerEvent> {
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            if event.name.is_empty() {
                event.name = "message".to_owned();
            }
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = value.to_owned(),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // An empty field is a comment, sent to keep the connection; others are for browsers.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<ServerEvent> {
        let (mut parser, mut ready) = (EventParser::default(), VecDeque::new());
        for piece in pieces {
            parser.push(piece, &mut ready).unwrap();
        }
        ready.into()
    }

    #[test]
    fn events_come_out_whole_however_the_bytes_are_cut() {
        let text = "event: output\nid: 1:2\ndata: {\"text\":\"gr\u{fc}n\"}\n\n: keep-alive\n\ndata: a\r\ndata: b\r\n\r\nevent: cut".as_bytes();
        let expected = [
            ServerEvent { name: "output".into(), id: Some("1:2".into()), data: "{\"text\":\"gr\u{fc}n\"}".into() },
            ServerEvent { name: "message".into(), id: None, data: "a\nb".into() },
        ];
        assert_eq!(parse(&[text]), expected);
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(parse(&single), expected);
    }
}
