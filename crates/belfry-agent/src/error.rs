//! Why an agent did not start, or does not connect, in words for the person who runs it.

use std::io;
use std::path::PathBuf;

use belfry_exec::LookupError;

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("make the agent's data folder {}", path.display())]
    DataFolder {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("another agent uses the data folder {}; stop it, or give this one a folder of its own", path.display())]
    InUse { path: PathBuf },
    #[error("keep the node's id in {}", path.display())]
    NodeId {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the node's id in {} cannot be read; restore the file, or remove it to join as a new node", path.display())]
    DamagedNodeId { path: PathBuf },
    #[error("start the helper process that starts children, {}", program.display())]
    Zygote {
        program: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("open the spool in {}", path.display())]
    Spool {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("make the folder for files of runs, {}; choose another with --run-logs", path.display())]
    RunLogs {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("make the timer that starts runs at their instants")]
    Alarm {
        #[source]
        cause: io::Error,
    },
    #[error("{0}")]
    Policy(String),
    #[error("find the user that jobs run as by default")]
    DefaultUser {
        #[source]
        cause: LookupError,
    },
    #[error(
        "`{text}` is not an address of a server for agents; expected is HOST:PORT, and it is always spoken to over TLS"
    )]
    NotAnAddress { text: String },
    #[error(
        "this machine has not joined a cluster: on a machine with access to it, `belfry node join-token` prints the command to run here"
    )]
    NotJoined,
    #[error("join the cluster")]
    Join(#[source] crate::JoinError),
}

impl AgentError {
    /// Whether the same may succeed a little later, with nothing changed by a person.
    pub fn is_transient(&self) -> bool {
        match self {
            AgentError::DefaultUser { cause } => cause.is_transient(),
            AgentError::InUse { .. } => true,
            AgentError::DataFolder { .. }
            | AgentError::NodeId { .. }
            | AgentError::DamagedNodeId { .. }
            | AgentError::Zygote { .. }
            | AgentError::Spool { .. }
            | AgentError::RunLogs { .. }
            | AgentError::Alarm { .. }
            | AgentError::Policy(_)
            | AgentError::NotAnAddress { .. }
            | AgentError::NotJoined => false,
            AgentError::Join(cause) => matches!(cause, crate::JoinError::NoServer { .. }),
        }
    }
}
