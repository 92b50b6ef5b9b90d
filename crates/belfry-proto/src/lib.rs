//! The messages between agents and servers. In one process they travel over a channel as they are; between processes over gRPC.

/// The name in every server's certificate, which agents ask for whatever address they reach a server by.
pub const SERVER_NAME: &str = "server.belfry.internal";

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
        SendAgain => SendAgain, StateSaved => StateSaved);
    wrap!(FromAgent, from_agent: Hello => Hello, Heartbeat => Heartbeat, Taken => Taken, Started => Started, OutputChunk => Output,
        Ended => Ended, ClockAnswer => Clock, Load => Load, Released => Released, SaveState => SaveState, Host => Host, AskJobs => AskJobs,
        DisabledJobs => DisabledJobs);
}
