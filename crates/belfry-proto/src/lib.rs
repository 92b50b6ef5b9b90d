//! The messages between agents and servers. In one process they travel over a channel as they are; between processes over gRPC.

/// The name in every server's certificate, which agents ask for whatever address they reach a server by.
pub const SERVER_NAME: &str = "server.belfry.internal";

/// Far above anything but the hello of a node that was cut off for long with much to deliver. Not above that: a hello is read before it is
/// known who says it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Runs that a hello names at most, so that it is no greater than a message may be.
pub const HELLO_KEYS_MAX: usize = 450_000;

pub mod session {
    #![allow(clippy::all, missing_docs, reason = "generated")]
    tonic::include_proto!("belfry.session.v1");
}

/// Wraps a message for its direction, so that a sender names only what it says.
mod wrap {
    use crate::session::*;

    macro_rules! wrap {
        ($envelope:ident, $inner:ident: $($message:ident => $variant:ident),+ $(,)?) => {
            $(impl From<$message> for $envelope {
                fn from(message: $message) -> Self {
                    $envelope { message: Some($inner::Message::$variant(message)) }
                }
            })+
        };
    }
    wrap!(ToAgent, to_agent: Welcome => Welcome, HeartbeatAck => Heartbeat, Dispatch => Dispatch, Recall => Recall, Kill => Kill,
        Stored => Stored, ClockQuestion => Clock, Farewell => Farewell, Servers => Servers, LocalJobs => LocalJobs,
        SendAgain => SendAgain, StateSaved => StateSaved, AgreedTime => AgreedTime);
    wrap!(FromAgent, from_agent: Hello => Hello, Heartbeat => Heartbeat, Taken => Taken, Started => Started, OutputChunk => Output,
        Ended => Ended, ClockAnswer => Clock, Load => Load, Released => Released, SaveState => SaveState, Host => Host, AskJobs => AskJobs,
        DisabledJobs => DisabledJobs);
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::session::{FromAgent, Hello, RunKey};
    use super::{HELLO_KEYS_MAX, MESSAGE_BYTES_MAX};

    #[test]
    fn a_hello_with_all_that_it_may_name_is_no_greater_than_a_message_may_be() {
        const REST_BYTES: usize = 256 * 1024;
        let key = RunKey { run: "0".repeat(26), attempt: u32::MAX };
        let hello = Hello { finished: vec![key; HELLO_KEYS_MAX], ..Default::default() };
        assert!(FromAgent::from(hello).encoded_len() + REST_BYTES <= MESSAGE_BYTES_MAX);
    }
}
