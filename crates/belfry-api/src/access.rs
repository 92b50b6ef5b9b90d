//! Who may call what: one row per route, read by the gate in front of every route, by the OpenAPI document and by the tests. A route
//! without a row is denied to everyone.

use axum::http::Method;
use belfry_core::role::Role;

/// What a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// Any good credential.
    SignedIn,
    /// The role in at least one namespace; the answer holds only what may be seen.
    Somewhere(Role),
    /// The role in the namespace of the object itself; without viewer there, the object does not exist for the caller.
    Namespace(Role),
    /// The role for the whole cluster.
    Everywhere(Role),
}

impl Access {
    pub fn in_words(self) -> String {
        match self {
            Access::Open => "nothing".to_owned(),
            Access::SignedIn => "any credential".to_owned(),
            Access::Somewhere(role) => format!("{role} in any namespace"),
            Access::Namespace(role) => format!("{role} in the object's namespace"),
            Access::Everywhere(role) => format!("{role} everywhere"),
        }
    }
}

pub struct Row {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
}

const fn row(method: Method, path: &'static str, access: Access) -> Row {
    Row { method, path, access }
}

use Access::{Everywhere, Namespace, Open, SignedIn, Somewhere};
use Role::{Admin, Editor, Operator, Viewer};

#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row(Method::GET,    "/",                                  Open),
    row(Method::GET,    "/assets/{file}",                     Open),
    row(Method::GET,    "/favicon.svg",                       Open),
    row(Method::GET,    "/healthz",                           Open),
    row(Method::GET,    "/readyz",                            Open),
    row(Method::GET,    "/metrics",                           Everywhere(Viewer)),
    row(Method::GET,    "/api/openapi.json",                  SignedIn),

    row(Method::POST,   "/api/v1/login",                      Open),
    row(Method::POST,   "/api/v1/logout",                     SignedIn),
    row(Method::GET,    "/api/v1/whoami",                     SignedIn),
    row(Method::POST,   "/api/v1/password",                   SignedIn),

    row(Method::GET,    "/api/v1/jobs",                       Somewhere(Viewer)),
    row(Method::POST,   "/api/v1/jobs",                       Namespace(Editor)),
    row(Method::POST,   "/api/v1/apply",                      Namespace(Editor)),
    row(Method::GET,    "/api/v1/jobs/{ns}/{name}",           Namespace(Viewer)),
    row(Method::PUT,    "/api/v1/jobs/{ns}/{name}",           Namespace(Editor)),
    row(Method::PATCH,  "/api/v1/jobs/{ns}/{name}",           Namespace(Editor)),
    row(Method::DELETE, "/api/v1/jobs/{ns}/{name}",           Namespace(Editor)),
    row(Method::GET,    "/api/v1/jobs/{ns}/{name}/revisions", Namespace(Viewer)),
    row(Method::GET,    "/api/v1/jobs/{ns}/{name}/fires",     Namespace(Viewer)),
    row(Method::GET,    "/api/v1/jobs/{ns}/{name}/state",     Namespace(Viewer)),
    row(Method::PUT,    "/api/v1/jobs/{ns}/{name}/state",     Namespace(Operator)),
    row(Method::POST,   "/api/v1/jobs/{ns}/{name}/run",       Namespace(Operator)),
    row(Method::POST,   "/api/v1/jobs/{ns}/{name}/pause",     Namespace(Operator)),
    row(Method::POST,   "/api/v1/jobs/{ns}/{name}/resume",    Namespace(Operator)),
    row(Method::POST,   "/api/v1/jobs/{ns}/{name}/kill",      Namespace(Operator)),
    row(Method::POST,   "/api/v1/jobs/{ns}/{name}/move",      Namespace(Operator)),
    row(Method::GET,    "/api/v1/services",                   Somewhere(Viewer)),
    row(Method::POST,   "/api/v1/schedule/preview",           SignedIn),
    row(Method::GET,    "/api/v1/explain",                    Namespace(Viewer)),

    row(Method::GET,    "/api/v1/scripts",                    Somewhere(Viewer)),
    row(Method::GET,    "/api/v1/scripts/{ns}/{name}",        Namespace(Viewer)),
    row(Method::PUT,    "/api/v1/scripts/{ns}/{name}",        Namespace(Editor)),
    row(Method::DELETE, "/api/v1/scripts/{ns}/{name}",        Namespace(Editor)),
    row(Method::GET,    "/api/v1/scripts/{ns}/{name}/versions", Namespace(Viewer)),

    row(Method::GET,    "/api/v1/namespaces",                 Somewhere(Viewer)),
    row(Method::GET,    "/api/v1/runs",                       Somewhere(Viewer)),
    row(Method::DELETE, "/api/v1/runs",                       Everywhere(Admin)),
    row(Method::GET,    "/api/v1/runs/{id}",                  Namespace(Viewer)),
    row(Method::GET,    "/api/v1/runs/{id}/deliveries",       Namespace(Viewer)),
    row(Method::GET,    "/api/v1/runs/{id}/output",           Namespace(Viewer)),
    row(Method::GET,    "/api/v1/runs/{id}/stream",           Namespace(Viewer)),
    row(Method::POST,   "/api/v1/runs/{id}/kill",             Namespace(Operator)),
    row(Method::POST,   "/api/v1/runs/{id}/rerun",            Namespace(Operator)),
    row(Method::PUT,    "/api/v1/wrapped/output",             Namespace(Operator)),
    row(Method::GET,    "/api/v1/events",                     Somewhere(Viewer)),
    row(Method::GET,    "/api/v1/overview",                   Somewhere(Viewer)),
    row(Method::GET,    "/api/v1/forecast",                   Somewhere(Viewer)),
    row(Method::GET,    "/api/v1/timeline",                   Somewhere(Viewer)),

    row(Method::GET,    "/api/v1/nodes",                      Everywhere(Viewer)),
    row(Method::POST,   "/api/v1/nodes/join-tokens",          Everywhere(Admin)),
    row(Method::GET,    "/api/v1/nodes/{id}",                 Everywhere(Viewer)),
    row(Method::PATCH,  "/api/v1/nodes/{id}",                 Everywhere(Admin)),
    row(Method::DELETE, "/api/v1/nodes/{id}",                 Everywhere(Admin)),
    row(Method::GET,    "/api/v1/cluster",                    Everywhere(Viewer)),
    row(Method::GET,    "/api/v1/webhook-secret",             Everywhere(Admin)),
    row(Method::POST,   "/api/v1/webhook-secret",             Everywhere(Admin)),
    row(Method::GET,    "/api/v1/audit",                      Somewhere(Admin)),

    row(Method::GET,    "/api/v1/users",                      Everywhere(Admin)),
    row(Method::POST,   "/api/v1/users",                      Everywhere(Admin)),
    row(Method::GET,    "/api/v1/users/{name}",               Everywhere(Admin)),
    row(Method::PATCH,  "/api/v1/users/{name}",               Everywhere(Admin)),
    row(Method::DELETE, "/api/v1/users/{name}",               Everywhere(Admin)),
    row(Method::GET,    "/api/v1/tokens",                     SignedIn),
    row(Method::POST,   "/api/v1/tokens",                     SignedIn),
    row(Method::DELETE, "/api/v1/tokens/{id}",                SignedIn),
];

/// The row of a route; a HEAD is answered as its GET.
pub fn access_of(method: &Method, path: &str) -> Option<Access> {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    TABLE.iter().find(|row| row.method == *method && row.path == path).map(|row| row.access)
}

/// The methods that a path answers, for `Allow`.
pub fn methods_of(path: &str) -> Vec<&'static str> {
    TABLE.iter().filter(|row| row.path == path).map(|row| row.method.as_str()).collect()
}
