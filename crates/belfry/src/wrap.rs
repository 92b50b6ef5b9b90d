//! `belfry wrap`, and the same program called `dcron`: a command of cron's that runs on one of many hosts. It has its own way of reading
//! arguments, starts as little as it can, and talks to a server only when all is over, if one is named.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belfry_coord::{CoordError, Coordinator, OldLock, SystemClock};
use belfry_exec::Stream;
use belfry_sql::SqlError;
use belfry_wrap::{Failure, Output, Parameters, Piece, Surroundings, TellOutput, Unreachable, Untold};
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::cli::ServerChoice;
use crate::client::{Client, ClientError, Credential, find_server};
use crate::print::tell;
use crate::serve;

const LOCALTIME: &str = "/etc/localtime";

/// What follows `belfry wrap` or `dcron`; none: something else is asked for.
pub fn asked_for(args: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut args = args.into_iter();
    let name = args.next()?;
    let mut rest = args.peekable();
    if Path::new(&name).file_name().is_some_and(|name| name == "dcron") {
        return Some(rest.collect());
    }
    rest.next_if(|word| word == "wrap")?;
    // The help of all commands is in one place.
    let is_help = rest.peek().is_some_and(|word| word == "--help" || word == "-h");
    (!is_help).then(|| rest.collect())
}

pub fn run(args: Vec<OsString>) -> ExitCode {
    match try_run(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            tell(&format!("dcron: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

fn try_run(args: Vec<OsString>) -> Result<u8, Failure> {
    let parameters = Parameters::read(args, std::env::vars_os()).map_err(Failure::SaidWrong)?;
    let _alone_on_this_host = if parameters.is_long_lived() {
        match belfry_wrap::detach(&parameters)? {
            Some(detached) => Some(detached),
            None => return Ok(0),
        }
    } else {
        None
    };
    // One that waits would hold 8 MB in four huge pages, and needs two.
    serve::use_small_pages();
    let filter = EnvFilter::try_from_env("BELFRY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A line that cannot be written, on a full disk or to a reader that is gone, is lost: to say so there too would end the wrapper and its command.
    log.with_ansi(false).log_internal_errors(false).init();
    for doubt in &parameters.doubts {
        tracing::warn!("{doubt}");
    }
    // One lock for all time has no hour in it.
    let zone = if parameters.is_long_lived() { TimeZone::UTC } else { local_zone()? };
    let surroundings = Surroundings {
        zygote: serve::own_zygote(),
        clock: Arc::new(SystemClock),
        zone,
        open_old_lock: OldLock::of,
        tell_output: server_of_environment().map(teller),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| Failure::Cannot(format!("start: {cause}")))?;
    let done = runtime.block_on(belfry_wrap::run(parameters, surroundings, connect));
    // What still waits for an answer is of no use to anybody.
    runtime.shutdown_background();
    done
}

/// As date(1) finds it: `TZ`, which names a zone, a file or spells one out, else the file of this machine, whatever it is a copy of. What date
/// would take for UTC without a word, as a name or file that does not exist, is refused: a host that has another instance than its neighbours
/// runs the command beside them.
fn local_zone() -> Result<TimeZone, Failure> {
    let wrong = |said: &OsStr, why: String| {
        Failure::SaidWrong(format!(
            "TZ={} {why}; name a zone (TZ=Europe/Berlin), in the crontab if in doubt, or leave it out for /etc/localtime",
            said.display()
        ))
    };
    let Some(said) = std::env::var_os("TZ") else {
        return match std::fs::read(LOCALTIME) {
            Ok(file) => TimeZone::tzif("Local", &file)
                .map_err(|cause| Failure::Cannot(format!("{LOCALTIME} is no time zone: {cause}; set TZ"))),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(TimeZone::UTC),
            Err(cause) => Err(Failure::Cannot(format!("read {LOCALTIME}: {cause}; set TZ"))),
        };
    };
    let text = said.to_str().ok_or_else(|| wrong(&said, "is not UTF-8".to_owned()))?;
    match text.strip_prefix(':').unwrap_or(text) {
        "" => Ok(TimeZone::UTC),
        path if path.starts_with('/') => {
            let file = std::fs::read(path).map_err(|cause| wrong(&said, format!("cannot be read: {cause}")))?;
            TimeZone::tzif("Local", &file).map_err(|cause| wrong(&said, format!("is no file of a time zone: {cause}")))
        }
        name => TimeZone::get(name)
            .or_else(|_| TimeZone::posix(name))
            .map_err(|_| wrong(&said, "is not a time zone that is known here".to_owned())),
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Coordinator>, Unreachable> {
    serve::connect_coordinator("DCRON_COORD", url).await.map_err(|cause| {
        let by_coordinator = cause.chain().filter_map(|cause| cause.downcast_ref::<CoordError>());
        let by_database = cause.chain().filter_map(|cause| cause.downcast_ref::<SqlError>());
        let mut transient = by_coordinator.map(CoordError::is_transient).chain(by_database.map(SqlError::is_transient));
        Unreachable { is_transient: transient.any(|it| it), cause: format!("{cause:#}") }
    })
}

/// The server that is told what commands print. From the environment alone: others see a command line.
fn server_of_environment() -> Option<ServerChoice> {
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (url, token) = (said("BELFRY_URL")?, said("BELFRY_TOKEN")?);
    Some(ServerChoice { url: Some(url), token: Some(token), ca: said("BELFRY_CA").map(Into::into), data: None })
}

/// Nothing of it is made before it is needed.
fn teller(server: ServerChoice) -> TellOutput {
    Box::new(move |output| {
        let server = server.clone();
        Box::pin(async move {
            let told = tell_output(&server, output).await;
            told.map_err(|cause| Untold { is_transient: cause.is_transient(), cause: cause.to_string() })
        })
    })
}

async fn tell_output(server: &ServerChoice, output: &Output) -> Result<(), ClientError> {
    let found = find_server(server)?;
    let credential = found.token.map_or(Credential::None, Credential::Token);
    let client = Client::new(&found.url, found.ca.as_deref(), credential)?;
    let Output { name, instance, claimed_at, attempt, pieces } = output;
    let body = json!({
        "name": name,
        "instance": instance,
        "claimed_at_ms": claimed_at.as_millisecond(),
        "attempt": attempt,
        "chunks": pieces.iter().map(chunk).collect::<Vec<Value>>(),
    });
    client.put(&["wrapped", "output"], body).await.map(drop)
}

fn chunk(Piece { at, dropped_bytes, chunk }: &Piece) -> Value {
    let stream = match chunk.stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let mut told = json!({ "stream": stream, "at_ms": at.as_millisecond(), "dropped_bytes": dropped_bytes });
    // As text a control character would take six.
    let is_plain = |text: &&str| !text.chars().any(|c| c.is_control() && !"\n\r\t".contains(c));
    match std::str::from_utf8(&chunk.bytes).ok().filter(is_plain) {
        Some(text) => told["text"] = text.into(),
        None => told["base64"] = STANDARD.encode(&chunk.bytes).into(),
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Option<Vec<OsString>> {
        asked_for(words.iter().map(OsString::from))
    }

    #[test]
    fn it_is_called_by_its_own_name_or_by_a_link() {
        let rest = Some(vec![OsString::from("A=1"), "--".into(), "true".into()]);
        assert_eq!(asked(&["/usr/bin/belfry", "wrap", "A=1", "--", "true"]), rest);
        assert_eq!(asked(&["/usr/local/bin/dcron", "A=1", "--", "true"]), rest);
        assert_eq!(asked(&["dcron"]), Some(vec![]));
        assert_eq!(asked(&["belfry", "job", "wrap"]), None);
        assert_eq!(asked(&["belfry", "wrap", "--help"]), None);
        assert_eq!(asked(&["belfry"]), None);
    }
}
