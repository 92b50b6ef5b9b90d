//! The rules of a document: what is accepted when it is saved. Every refusal names the field, the value and what would be
//! accepted; what later work will bring is refused by name, never ignored.

use jiff::Timestamp;

use super::{
    Action, Backoff, JobDocument, Limits, Misfire, Needs, Overlap, Placement, Refusal, RunAs, RunOn, Script, Service,
    Signature, Timeout, Webhook, WhenCutOff,
};
use crate::run::RunState;
use crate::units::{Size, Span};
use crate::webhook::receiver_of;

pub const NAME_BYTES_MAX: usize = 128;
const DESCRIPTION_BYTES_MAX: usize = 4096;
const LABELS_MAX: usize = 32;
const LABEL_BYTES_MAX: usize = 256;
const SCHEDULES_MAX: usize = 16;
const COMMAND_BYTES_MAX: usize = 120 * 1024;
const ENV_MAX: usize = 256;
const ENV_VALUE_BYTES_MAX: usize = 32 * 1024;
const OUTPUT_KEEP_MIN: Size = Size::from_bytes(1 << 10);
const OUTPUT_KEEP_MAX: Size = Size::from_bytes(64 << 20);
const JITTER_MAX: Span = Span::from_secs(86_400);
const MISFIRE_LIMIT_MAX: u32 = 1000;
const ATTEMPTS_MAX: u32 = 100;
const MEMORY_LIMIT_MIN: Size = Size::from_bytes(4 << 20);
const CPUS_LIMIT_MIN: f64 = 0.01;
const CPUS_LIMIT_MAX: f64 = 4096.0;
const OPEN_FILES_LIMIT_MIN: u64 = 8;
/// Less would let a program that ends at once keep the cluster busy.
const RESTART_DELAY_MIN: Span = Span::from_millis(100);
const URL_BYTES_MAX: usize = 2048;

impl JobDocument {
    /// Reads a document and names the field when it cannot; the rules are checked by [`JobDocument::validate`].
    pub fn from_value(value: serde_json::Value) -> Result<Self, Refusal> {
        if !value.is_object() {
            return Err(Refusal::new("", "a job is an object with at least `name` and `action`"));
        }
        serde_path_to_error::deserialize(value).map_err(|e| {
            let path = e.path().to_string();
            let message = e.inner().to_string();
            // An unknown or missing field is named in the message; the path leads to its parent.
            let named = ["unknown field `", "missing field `", "unknown variant `"].iter().find_map(|lead| {
                let rest = message.strip_prefix(lead)?;
                (!lead.contains("variant")).then(|| rest.split('`').next().unwrap_or_default().to_owned())
            });
            let parent = if path == "." { "" } else { path.as_str() };
            let field = match named {
                Some(name) if parent.is_empty() => name,
                Some(name) if parent == name || parent.ends_with(&format!(".{name}")) => parent.to_owned(),
                Some(name) => format!("{parent}.{name}"),
                None => parent.to_owned(),
            };
            Refusal::new(field, message)
        })
    }

    /// Everything that can be known at `now` without the rest of the cluster.
    pub fn validate(&self, now: Timestamp) -> Result<(), Refusal> {
        check_name("name", &self.name)?;
        check_name("namespace", &self.namespace)?;
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            return Err(Refusal::new("description", format!("at most {DESCRIPTION_BYTES_MAX} bytes are accepted")));
        }
        self.check_labels()?;
        self.check_schedule(now)?;
        check_action(&self.action)?;
        self.run_as.check()?;
        if let Some(limits) = &self.limits {
            limits.check()?;
        }
        if let Some(needs) = &self.needs {
            needs.check()?;
        }
        if let Some(signature) = &self.signature {
            signature.check(&self.action)?;
        }
        if let Some(timeout) = &self.timeout {
            timeout.check()?;
        }
        self.check_output()?;
        self.check_retention()?;
        self.check_retry()?;
        self.check_run_on()?;
        if let Action::Service(service) = &self.action {
            self.check_service(service)?;
        }
        if let Some(webhook) = &self.webhook {
            webhook.check()?;
        }
        if let Placement::Sticky(holds) = self.placement
            && holds.is_zero()
        {
            return Err(Refusal::new("placement.sticky", "`0s` would never stay; write a duration such as 10m"));
        }
        self.refuse_what_is_to_come()
    }

    fn check_labels(&self) -> Result<(), Refusal> {
        if self.labels.len() > LABELS_MAX {
            return Err(Refusal::new(
                "labels",
                format!("at most {LABELS_MAX} labels are accepted, there are {}", self.labels.len()),
            ));
        }
        for (key, value) in &self.labels {
            if key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX || key.contains('=') {
                return Err(Refusal::new(
                    format!("labels.{key}"),
                    format!(
                        "a label's key is 1 to {LABEL_BYTES_MAX} bytes without `=`, its value at most {LABEL_BYTES_MAX} bytes"
                    ),
                ));
            }
        }
        Ok(())
    }

    fn check_schedule(&self, now: Timestamp) -> Result<(), Refusal> {
        if self.schedule.0.len() > SCHEDULES_MAX {
            return Err(Refusal::new("schedule", format!("at most {SCHEDULES_MAX} schedules are accepted")));
        }
        if self.jitter.is_some_and(|jitter| jitter > JITTER_MAX) {
            return Err(Refusal::new("jitter", "at most 1d is accepted"));
        }
        if self.misfire.limit == 0 || self.misfire.limit > MISFIRE_LIMIT_MAX {
            let message = format!("`{}` is out of range; 1 to {MISFIRE_LIMIT_MAX} are accepted", self.misfire.limit);
            return Err(Refusal::new("misfire.limit", message));
        }
        // A paused job may have no fire left; one that is switched on is expected to have one.
        let schedule = if self.enabled { self.compile_schedule_for_saving(now)? } else { self.compile_schedule(now)? };
        if schedule.at_boot() && self.run_on != RunOn::Each {
            return Err(Refusal::new(
                "schedule",
                "`@boot` is fired by each machine itself; write `run_on: each`, and choose the machines with `select`",
            ));
        }
        Ok(())
    }

    fn check_output(&self) -> Result<(), Refusal> {
        match self.output.keep {
            Some(keep) if !(OUTPUT_KEEP_MIN..=OUTPUT_KEEP_MAX).contains(&keep) => Err(Refusal::new(
                "output.keep",
                format!("`{keep}` is out of range; {OUTPUT_KEEP_MIN} to {OUTPUT_KEEP_MAX} are accepted"),
            )),
            _ => Ok(()),
        }
    }

    fn check_retention(&self) -> Result<(), Refusal> {
        if self.retention.age.is_some_and(Span::is_zero) {
            return Err(Refusal::new(
                "retention.age",
                "`0s` would remove every record at once; write a duration such as 30d",
            ));
        }
        if self.retention.runs == Some(0) {
            return Err(Refusal::new("retention.runs", "`0` would remove every record at once; 1 or more is accepted"));
        }
        Ok(())
    }

    fn check_retry(&self) -> Result<(), Refusal> {
        let Some(retry) = &self.retry else { return Ok(()) };
        if !(1..=ATTEMPTS_MAX).contains(&retry.attempts) {
            let message = format!(
                "`{}` is out of range; it counts the first start too, so 1 to {ATTEMPTS_MAX} are accepted",
                retry.attempts
            );
            return Err(Refusal::new("retry.attempts", message));
        }
        for (index, on) in retry.on.iter().enumerate() {
            let known = ["failed", "timed_out", "lost"].contains(&on.as_str());
            let by_code = on.strip_prefix("exit:").is_some_and(|code| code.parse::<u8>().is_ok_and(|code| code != 0));
            if !known && !by_code {
                let message =
                    format!("`{on}` is not accepted; failed, timed_out, lost or exit:N with N from 1 to 255 are");
                return Err(Refusal::new(format!("retry.on[{index}]"), message));
            }
        }
        if retry.attempts > 1 && retry.on.is_empty() {
            return Err(Refusal::new(
                "retry.on",
                "it is empty, so there would never be another attempt; name an end such as failed",
            ));
        }
        if retry.backoff == Backoff::Exponential && retry.delay > retry.max_delay {
            let message = format!(
                "`{}` is more than retry.max_delay, which is {}; make one of them fit, or write backoff: fixed",
                retry.delay, retry.max_delay
            );
            return Err(Refusal::new("retry.delay", message));
        }
        Ok(())
    }

    /// What cannot hold where nodes fire by themselves is refused, not ignored.
    fn check_run_on(&self) -> Result<(), Refusal> {
        let word = match self.run_on {
            RunOn::One => return Ok(()),
            RunOn::Each => "each",
            RunOn::Home => "home",
        };
        if self.when_cut_off == WhenCutOff::Stop {
            let message = format!("`stop` contradicts `run_on: {word}`, which goes on when its node is cut off");
            return Err(Refusal::new("when_cut_off", message));
        }
        if self.retry.as_ref().is_some_and(|retry| retry.attempts > 1) {
            return Err(Refusal::not_supported_yet("retry", &format!("more than one attempt with `run_on: {word}`")));
        }
        if let Action::Script(Script { name: Some(name), .. }) = &self.action {
            let message = format!(
                "`{name}` would have to be asked of a server, and `run_on: {word}` goes on without one; write its body into the job"
            );
            return Err(Refusal::new("action.script.name", message));
        }
        match (self.run_on, self.placement) {
            (RunOn::One | RunOn::Each, Placement::Weighted) => Ok(()),
            (RunOn::Home, Placement::Weighted | Placement::Least | Placement::Sticky(_)) => Ok(()),
            (RunOn::Home, placement) => {
                let message = format!(
                    "`{}` chooses for each run; a home is chosen by weighted, least or sticky",
                    placement.word()
                );
                Err(Refusal::new("placement", message))
            }
            (RunOn::One | RunOn::Each, _) => {
                let message =
                    "nothing is chosen with `run_on: each`: it runs on every node that `select` names; leave it out";
                Err(Refusal::new("placement", message))
            }
        }
    }

    /// A service always runs, so whatever says when, how often or how long something runs contradicts it.
    fn check_service(&self, service: &Service) -> Result<(), Refusal> {
        let pointless = [
            (
                "schedule",
                !self.schedule.is_empty(),
                "a service always runs; leave the schedule out, and pause the job to stop it",
            ),
            ("jitter", self.jitter.is_some(), "a service has no instants to spread; leave it out"),
            ("window", self.window.is_some(), "a service always runs; leave it out, and pause the job to stop it"),
            ("misfire", self.misfire != Misfire::default(), "a service has no fires to miss; leave it out"),
            ("overlap", self.overlap != Overlap::default(), "there is never more than one of a service; leave it out"),
            (
                "retry",
                self.retry.is_some(),
                "a service is always started again; leave it out, see action.service.restart_delay",
            ),
            ("timeout", self.timeout.is_some(), "a service runs as long as it likes; leave it out"),
            ("run_on", self.run_on != RunOn::One, "a service runs on one node of the cluster; leave it out"),
        ];
        if let Some((field, _, why)) = pointless.into_iter().find(|(_, is_there, _)| *is_there) {
            return Err(Refusal::new(field, why));
        }
        match service.restart_delay.filter(|delay| *delay < RESTART_DELAY_MIN) {
            Some(delay) => {
                let message = format!("`{delay}` is too short; {RESTART_DELAY_MIN} or more is accepted");
                Err(Refusal::new("action.service.restart_delay", message))
            }
            None => Ok(()),
        }
    }

    fn refuse_what_is_to_come(&self) -> Result<(), Refusal> {
        let later = Refusal::not_supported_yet;
        if !self.notify.is_empty() {
            return Err(later("notify", "telling channels"));
        }
        if !self.owners.is_empty() {
            return Err(later("owners", "telling owners"));
        }
        if self.expect.is_some() {
            return Err(later("expect", "the dead-man switch"));
        }
        Ok(())
    }
}

/// `[a-z0-9][a-z0-9._-]*`, so that a name is a file name, a key and a part of a URL as it is.
pub fn check_name(field: &str, name: &str) -> Result<(), Refusal> {
    let first_ok = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest_ok = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
    if first_ok && rest_ok && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "`{}` is not accepted; write a-z, 0-9, `.`, `_`, `-`, first a letter or digit, at most {NAME_BYTES_MAX} characters",
        name.chars().take(NAME_BYTES_MAX).collect::<String>()
    );
    Err(Refusal::new(field, message))
}

fn check_action(action: &Action) -> Result<(), Refusal> {
    match action {
        Action::Shell(shell) => check_text("action.shell.command", &shell.command),
        Action::Exec(exec) => check_argv("action.exec.argv", &exec.argv),
        Action::Service(Service { command: Some(command), argv, .. }) if argv.is_empty() => {
            check_text("action.service.command", command)
        }
        Action::Service(Service { command: None, argv, .. }) => check_argv("action.service.argv", argv),
        Action::Service(_) => Err(Refusal::new(
            "action.service",
            "write `command`, which bash reads, or `argv`, which it does not; not both",
        )),
        Action::Script(script) => check_script(script),
        Action::Http(_) | Action::Grpc(_) | Action::Handler(_) => {
            let kind = action.kind();
            Err(Refusal::new(
                format!("action.{kind}"),
                format!("`{kind}` is not supported yet; `shell`, `exec`, `script` and `service` are"),
            ))
        }
    }
}

fn check_argv(field: &str, argv: &[String]) -> Result<(), Refusal> {
    check_text(field, argv.first().map_or("", String::as_str))?;
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(Refusal::new(field, "an argument contains a NUL character, which no program can receive"));
    }
    if argv.iter().map(String::len).sum::<usize>() > COMMAND_BYTES_MAX {
        return Err(Refusal::new(field, format!("at most {COMMAND_BYTES_MAX} bytes are accepted")));
    }
    Ok(())
}

fn check_script(script: &Script) -> Result<(), Refusal> {
    match (&script.name, &script.body) {
        (Some(name), None) => check_name("action.script.name", name)?,
        (None, Some(body)) => check_script_body("action.script.body", body)?,
        (Some(_), Some(_)) => {
            return Err(Refusal::new(
                "action.script",
                "it has a name and a body; write the name of a stored script, or a body",
            ));
        }
        (None, None) => {
            return Err(Refusal::new("action.script", "it is empty; write the name of a stored script, or a body"));
        }
    }
    match &script.interpreter {
        Some(interpreter) => check_text("action.script.interpreter", interpreter),
        None => Ok(()),
    }
}

/// It travels with each order.
pub const SCRIPT_BYTES_MAX: usize = 64 * 1024;

/// The text of a script, stored or in a document.
pub fn check_script_body(field: &str, body: &str) -> Result<(), Refusal> {
    if body.len() > SCRIPT_BYTES_MAX {
        let message = format!(
            "at most {SCRIPT_BYTES_MAX} bytes are accepted, there are {}; put what is large on the nodes and call it from a script",
            body.len()
        );
        return Err(Refusal::new(field, message));
    }
    check_text(field, body)
}

fn check_text(field: &str, text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() {
        return Err(Refusal::new(field, "it is empty; write the command to run"));
    }
    if text.contains('\0') {
        return Err(Refusal::new(field, "it contains a NUL character, which no program can receive"));
    }
    if text.len() > COMMAND_BYTES_MAX {
        return Err(Refusal::new(
            field,
            format!("at most {COMMAND_BYTES_MAX} bytes are accepted, there are {}", text.len()),
        ));
    }
    Ok(())
}

impl Needs {
    fn check(&self) -> Result<(), Refusal> {
        for (field, size) in [("needs.memory", self.memory), ("needs.disk", self.disk)] {
            if size.is_some_and(|size| size.bytes() == 0) {
                return Err(Refusal::new(field, "`0B` is not accepted; write how much must be free, or leave it out"));
            }
        }
        if let Some(cpus) = self.cpus.filter(|cpus| !(CPUS_LIMIT_MIN..=CPUS_LIMIT_MAX).contains(cpus)) {
            let message = format!("`{cpus}` is out of range; {CPUS_LIMIT_MIN} to {CPUS_LIMIT_MAX} are accepted");
            return Err(Refusal::new("needs.cpus", message));
        }
        Ok(())
    }
}

impl RunAs {
    fn check(&self) -> Result<(), Refusal> {
        for (field, name) in [("as.user", &self.user), ("as.group", &self.group)] {
            if let Some(name) = name
                && !is_account_name(name)
            {
                let message = format!(
                    "`{name}` is not accepted; write a name as the machine knows it: letters, digits, `.`, `_`, `-`, first a letter or `_`"
                );
                return Err(Refusal::new(field, message));
            }
        }
        if let Some(directory) = &self.directory
            && (!directory.starts_with('/') || directory.contains('\0'))
        {
            return Err(Refusal::new("as.directory", format!("`{directory}` is not accepted; write an absolute path")));
        }
        if self.umask.is_some() && self.umask_bits().is_none() {
            let text = self.umask.as_deref().unwrap_or_default();
            return Err(Refusal::new(
                "as.umask",
                format!("`{text}` is not accepted; write three octal digits as text, such as \"027\""),
            ));
        }
        if self.env.len() > ENV_MAX {
            return Err(Refusal::new("as.env", format!("at most {ENV_MAX} variables are accepted")));
        }
        for (key, value) in &self.env {
            check_env("as.env", key, value)?;
        }
        Ok(())
    }

    pub fn umask_bits(&self) -> Option<u32> {
        let text = self.umask.as_deref()?;
        (text.len() <= 4).then(|| u32::from_str_radix(text, 8).ok()).flatten().filter(|bits| *bits <= 0o777)
    }
}

/// As the tools that make users take them, and a little more; numbers would mean somebody else on another machine.
fn is_account_name(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let goes_on_well = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '$' | '@' | '\\');
    starts_well && name.chars().all(goes_on_well) && name.len() <= LABEL_BYTES_MAX
}

impl Limits {
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if let Some(memory) = self.memory.filter(|memory| *memory < MEMORY_LIMIT_MIN) {
            let message = format!("`{memory}` is too little for any program; {MEMORY_LIMIT_MIN} or more is accepted");
            return Err(Refusal::new("limits.memory", message));
        }
        if let Some(cpus) = self.cpus.filter(|cpus| !(CPUS_LIMIT_MIN..=CPUS_LIMIT_MAX).contains(cpus)) {
            let message = format!("`{cpus}` is out of range; {CPUS_LIMIT_MIN} to {CPUS_LIMIT_MAX} are accepted");
            return Err(Refusal::new("limits.cpus", message));
        }
        if let Some(files) = self.open_files.filter(|files| *files < OPEN_FILES_LIMIT_MIN) {
            let message =
                format!("`{files}` is too little for any program; {OPEN_FILES_LIMIT_MIN} or more is accepted");
            return Err(Refusal::new("limits.open_files", message));
        }
        if self.processes == Some(0) {
            return Err(Refusal::new("limits.processes", "`0` would let nothing start; 1 or more is accepted"));
        }
        if self.cpu_time.is_some_and(|time| time < Span::from_secs(1)) {
            return Err(Refusal::new("limits.cpu_time", "the kernel counts whole seconds; 1s or more is accepted"));
        }
        Ok(())
    }
}

impl Signature {
    /// Only what is executed by itself can be held to a digest: a shell would open the file once more.
    fn check(&self, action: &Action) -> Result<(), Refusal> {
        let digests = [("sha256", 64, &self.sha256), ("md5", 32, &self.md5)];
        for (name, digits, digest) in digests {
            if let Some(digest) = digest
                && (digest.len() != digits || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
            {
                let message =
                    format!("`{digest}` is not accepted; write {digits} hexadecimal digits, as {name}sum prints");
                return Err(Refusal::new(format!("signature.{name}"), message));
            }
        }
        if self.sha256.is_none() && self.md5.is_none() {
            return Err(Refusal::new(
                "signature",
                "it has no digest; write sha256, or md5 where there is nothing better",
            ));
        }
        if !self.file.starts_with('/') || self.file.contains('\0') {
            let message = format!("`{}` is not accepted; write an absolute path", self.file);
            return Err(Refusal::new("signature.file", message));
        }
        match action {
            Action::Exec(exec) if exec.argv.first() == Some(&self.file) => Ok(()),
            _ => Err(Refusal::new(
                "signature.file",
                "what is signed is what is executed: write `action: {exec: {argv: [FILE, …]}}` with the same file",
            )),
        }
    }
}

/// One variable of a job's or a manual run's environment.
pub fn check_env(field: &str, key: &str, value: &str) -> Result<(), Refusal> {
    let shape_ok = !key.is_empty()
        && !key.as_bytes()[0].is_ascii_digit()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && key.len() <= LABEL_BYTES_MAX;
    if !shape_ok {
        return Err(Refusal::new(
            format!("{field}.{key}"),
            "a variable's name is letters, digits and `_`, and does not start with a digit",
        ));
    }
    if key.starts_with("BELFRY_") {
        return Err(Refusal::new(format!("{field}.{key}"), "names that start with BELFRY_ are set by Belfry"));
    }
    if value.contains('\0') || value.len() > ENV_VALUE_BYTES_MAX {
        return Err(Refusal::new(
            format!("{field}.{key}"),
            format!("a value is at most {ENV_VALUE_BYTES_MAX} bytes and has no NUL"),
        ));
    }
    Ok(())
}

impl Webhook {
    fn check(&self) -> Result<(), Refusal> {
        if self.url.len() > URL_BYTES_MAX {
            return Err(Refusal::new("webhook.url", format!("at most {URL_BYTES_MAX} bytes are accepted")));
        }
        if receiver_of(&self.url).is_none() {
            let message = format!(
                "`{}` is not accepted; write http:// or https:// with a host and no user, as https://hooks.example/belfry",
                self.url
            );
            return Err(Refusal::new("webhook.url", message));
        }
        for (index, on) in self.on.iter().enumerate() {
            if !RunState::parse(on).is_some_and(RunState::is_ended) {
                let ends: Vec<_> = RunState::ALL.into_iter().filter(|state| state.is_ended()).collect();
                let ends = ends.into_iter().map(RunState::as_str).collect::<Vec<_>>().join(", ");
                return Err(Refusal::new(
                    format!("webhook.on[{index}]"),
                    format!("`{on}` is no end of a run; {ends} are"),
                ));
            }
        }
        Ok(())
    }
}

impl Timeout {
    fn check(&self) -> Result<(), Refusal> {
        if self.after.is_zero() {
            return Err(Refusal::new(
                "timeout.after",
                "`0s` would end every run at once; write a duration such as 30m",
            ));
        }
        Ok(())
    }
}
