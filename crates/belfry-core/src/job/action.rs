//! What a run does: exactly one kind of action.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::Span;

/// In the document, a map with exactly one key, the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Action {
    Shell(Shell),
    Exec(Exec),
    Script(Script),
    Http(Http),
    Grpc(Grpc),
    Handler(Handler),
    Service(Service),
}

impl Action {
    pub const KINDS: [&'static str; 7] = ["shell", "exec", "script", "http", "grpc", "handler", "service"];

    pub fn kind(&self) -> &'static str {
        match self {
            Action::Shell(_) => "shell",
            Action::Exec(_) => "exec",
            Action::Script(_) => "script",
            Action::Http(_) => "http",
            Action::Grpc(_) => "grpc",
            Action::Handler(_) => "handler",
            Action::Service(_) => "service",
        }
    }

    /// One line for lists and history: the command as typed, or what is called.
    pub fn summary(&self) -> String {
        match self {
            Action::Shell(shell) => shell.command.clone(),
            Action::Exec(exec) => exec.argv.join(" "),
            Action::Script(script) => script.name.clone().unwrap_or_else(|| "script".to_owned()),
            Action::Http(http) => format!("{} {}", http.method, http.url),
            Action::Grpc(grpc) => format!("{} {}", grpc.endpoint, grpc.method),
            Action::Handler(handler) => handler.name.clone(),
            Action::Service(service) => service.command.clone().unwrap_or_else(|| service.argv.join(" ")),
        }
    }
}

/// Run by `/bin/bash -c`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shell {
    pub command: String,
}

/// Run without a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    pub argv: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    #[serde(default = "get")]
    pub method: String,
    pub url: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<HttpExpect>,
    #[serde(default, rename = "async", skip_serializing_if = "std::ops::Not::not")]
    pub answers_later: bool,
}

fn get() -> String {
    "GET".to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpExpect {
    pub status: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grpc {
    pub endpoint: String,
    pub method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handler {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_delay: Option<Span>,
}
