//! What the wrapper is asked to do: `KEY=VALUE… -- command`, the rest from the environment. Nothing that is not understood is passed over.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use belfry_core::units::Span;
use belfry_core::wrapped::Rule;

use crate::name::Name;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub name: Name,
    /// A URL.
    pub coordinator: String,
    /// None: this host's address.
    pub id: Option<String>,
    /// Hosts that hold an instance, the running one included; and attempts.
    pub hosts_max: u32,
    pub rule: Rule,
    /// For so long after an end the same host is preferred.
    pub stick: Duration,
    pub lib_dir: PathBuf,
    pub log_dir: PathBuf,
    pub captures: bool,
    pub user: Option<(String, Option<String>)>,
    pub memory_bytes_max: Option<u64>,
    pub ttl: Duration,
    /// For a coordinator that does not answer at the start.
    pub wait: Duration,
    pub absent: Absent,
    pub keep: Duration,
    /// The lock of the old wrapper is taken too.
    pub compat: bool,
    pub command: Vec<OsString>,
    /// What was understood, and perhaps not meant.
    pub doubts: Vec<String>,
}

/// What is done when the coordinator does not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    Run,
    Skip,
}

/// What may follow `DCRON_`. A saved value never has one of these names.
pub(crate) const KNOWN: [&str; 19] = [
    "NAME",
    "ZK",
    "COORD",
    "ID",
    "MAXRETRY",
    "LIBDIR",
    "LOGDIR",
    "RETRYON",
    "LLAP",
    "STICK",
    "FIFO",
    "STDIOCAP",
    "USER",
    "RLIMIT_AS",
    "TTL",
    "WAIT",
    "ABSENT",
    "KEEP",
    "COMPAT",
];
const PREFIX: &str = "DCRON_";
const TTL_MIN: Duration = Duration::from_secs(2);
const TTL_DEFAULT: Duration = Duration::from_secs(15);
const WAIT_DEFAULT: Duration = Duration::from_secs(30);
const KEEP_DEFAULT: Duration = Duration::from_hours(24);
/// Hosts that come late must find that it is done.
const KEEP_MIN: Duration = Duration::from_mins(10);
const LONG_LIVED_STICK: Duration = Duration::from_secs(90);
const HOSTS_MAX: u32 = 90;

impl Parameters {
    /// Of what is said twice the command line counts.
    pub fn read(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Parameters, String> {
        let (said, command) = split(args.into_iter().collect())?;
        if command.is_empty() {
            return Err(format!("there is no command; {USAGE}"));
        }
        Given::of(said, env)?.parameters(command)
    }

    pub fn is_long_lived(&self) -> bool {
        self.rule == Rule::LongLived
    }
}

const USAGE: &str = "write dcron DCRON_NAME=dbbackup.%F_%H%M DCRON_COORD=URL -- command arguments";

/// What stands before `--`, and the command. Without parameters in front all of it is the command, also where that has a `--` of its own.
fn split(args: Vec<OsString>) -> Result<(Vec<OsString>, Vec<OsString>), String> {
    let is_parameter =
        |arg: &OsString| arg.to_string_lossy().starts_with(PREFIX) && arg.to_string_lossy().contains('=');
    let first_is = args.first().is_some_and(|arg| is_parameter(arg) || arg == "--");
    let dashes = args.iter().position(|arg| arg == "--");
    match dashes {
        Some(dashes) if first_is || args[..dashes].iter().all(|arg| arg.to_string_lossy().contains('=')) => {
            let command = args[dashes + 1..].to_vec();
            Ok((args[..dashes].to_vec(), command))
        }
        None if first_is => Err(format!("there is no `--` between the parameters and the command; {USAGE}")),
        Some(_) | None => Ok((Vec::new(), args)),
    }
}

/// Values by name, without `DCRON_`, and which of them the command line has.
struct Given {
    values: BTreeMap<String, String>,
    on_command_line: Vec<String>,
}

impl Given {
    fn of(said: Vec<OsString>, env: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Given, String> {
        let mut given = Given { values: BTreeMap::new(), on_command_line: Vec::new() };
        let env: Vec<(OsString, OsString)> = env.into_iter().collect();
        // Inside of another wrapper's command: its saved values are no parameters.
        let is_inside = env.iter().any(|(name, _)| name == "DCRON_FIFO");
        for (name, value) in env {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if KNOWN.contains(&name) {
                given.values.insert(name.to_owned(), text(name, &value)?);
            } else if !is_inside {
                return Err(unknown(name));
            }
        }
        for word in said {
            let word = text("parameter", &word)?;
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no KEY=VALUE; {USAGE}"))?;
            let name = name
                .strip_prefix(PREFIX)
                .ok_or_else(|| format!("`{name}` is no parameter; they begin with {PREFIX}"))?;
            if !KNOWN.contains(&name) || name == "FIFO" {
                return Err(unknown(name));
            }
            given.values.insert(name.to_owned(), value.to_owned());
            given.on_command_line.push(name.to_owned());
        }
        Ok(given)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn parameters(&self, command: Vec<OsString>) -> Result<Parameters, String> {
        let is_long_lived = self.boolean("LLAP", false)?;
        let rule = match (is_long_lived, self.get("RETRYON").unwrap_or_default().to_ascii_uppercase().as_str()) {
            (true, _) => Rule::LongLived,
            (false, "") => Rule::AtMostOnce,
            (false, "CRASH") => Rule::Crash,
            (false, "ABEXIT") => Rule::AbnormalExit,
            (false, other) => {
                return Err(format!("DCRON_RETRYON=`{other}` is not known; it is empty, CRASH or ABEXIT"));
            }
        };
        let name = self.get("NAME").ok_or_else(|| format!("DCRON_NAME is missing; {USAGE}"))?;
        let mut doubts = Vec::new();
        let hosts_max = match self.get("MAXRETRY") {
            Some("0") => {
                doubts.push("DCRON_MAXRETRY=0 is taken for 1, one host and one attempt; write 1".to_owned());
                1
            }
            Some(_) | None => self.number("MAXRETRY", 2, 1, u64::from(HOSTS_MAX))? as u32,
        };
        let stick = if is_long_lived { LONG_LIVED_STICK } else { Duration::ZERO };
        let (ttl, keep) = (self.span("TTL", TTL_DEFAULT)?, self.span("KEEP", KEEP_DEFAULT)?);
        if ttl < TTL_MIN {
            return Err(format!(
                "DCRON_TTL={} is too short; use at least {} seconds",
                ttl.as_secs(),
                TTL_MIN.as_secs()
            ));
        }
        if keep < KEEP_MIN {
            return Err(format!(
                "DCRON_KEEP is too short: a host that comes late would run it again; use at least {} minutes",
                KEEP_MIN.as_secs() / 60
            ));
        }
        let parameters = Parameters {
            name: Name::parse(name, is_long_lived)?,
            coordinator: self.coordinator()?,
            id: self.get("ID").map(str::to_owned),
            hosts_max,
            rule,
            stick: self.span("STICK", stick)?,
            lib_dir: self.get("LIBDIR").unwrap_or("/var/lib/dcron").into(),
            log_dir: self.get("LOGDIR").unwrap_or("/var/log/dcron").into(),
            captures: self.boolean("STDIOCAP", !is_long_lived)?,
            user: self.get("USER").map(|user| match user.split_once(':') {
                Some((user, group)) => (user.to_owned(), Some(group.to_owned())),
                None => (user.to_owned(), None),
            }),
            memory_bytes_max: self.memory()?,
            ttl,
            wait: self.span("WAIT", WAIT_DEFAULT)?,
            absent: match self.get("ABSENT").unwrap_or("skip") {
                "run" => Absent::Run,
                "skip" => Absent::Skip,
                other => return Err(format!("DCRON_ABSENT=`{other}` is not known; it is run or skip")),
            },
            keep,
            compat: self.boolean("COMPAT", false)?,
            command,
            doubts,
        };
        if parameters.compat && is_long_lived {
            return Err(
                "DCRON_COMPAT=true does not go with DCRON_LLAP=true: the old wrapper's lock of a long-lived process has the minute in it, so that it keeps nobody out; stop the old one on all hosts first".into(),
            );
        }
        if parameters.compat && !parameters.coordinator.starts_with("zookeeper:") {
            return Err(
                "DCRON_COMPAT=true takes the old wrapper's lock, which is on ZooKeeper; name one with DCRON_ZK".into(),
            );
        }
        if is_long_lived && parameters.absent == Absent::Run {
            return Err(
                "DCRON_ABSENT=run with DCRON_LLAP=true would start one on every host; leave one of them out".into()
            );
        }
        Ok(parameters)
    }

    fn coordinator(&self) -> Result<String, String> {
        let is_said = |name: &str| self.on_command_line.iter().any(|said| said == name);
        let of_zookeeper = |hosts: &str| format!("zookeeper://{hosts}");
        match (self.get("COORD"), self.get("ZK")) {
            (Some(url), None) => Ok(url.to_owned()),
            (None, Some(hosts)) => Ok(of_zookeeper(hosts)),
            (Some(url), Some(_)) if is_said("COORD") && !is_said("ZK") => Ok(url.to_owned()),
            (Some(_), Some(hosts)) if is_said("ZK") && !is_said("COORD") => Ok(of_zookeeper(hosts)),
            (Some(_), Some(_)) => Err("DCRON_COORD and DCRON_ZK name two coordinators; leave one out".into()),
            (None, None) => Err(
                "there is no coordinator; DCRON_ZK=host:2181/chroot or DCRON_COORD=etcd://…, zookeeper://…, postgres://…, mysql://… or sqlite:PATH names one"
                    .into(),
            ),
        }
    }

    fn boolean(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true" | "yes" | "1") => Ok(true),
            Some("false" | "no" | "0") => Ok(false),
            Some(other) => Err(format!("{PREFIX}{name}=`{other}` is neither true nor false")),
        }
    }

    fn number(&self, name: &str, default: u64, least: u64, most: u64) -> Result<u64, String> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("{PREFIX}{name}=`{text}` is not a number from {least} to {most}"))
    }

    /// Seconds, or with a unit.
    fn span(&self, name: &str, default: Duration) -> Result<Duration, String> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let text = if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}s") } else { text.to_owned() };
        Span::parse(&text)
            .map(Span::get)
            .map_err(|wrong| format!("{PREFIX}{name}: {wrong}; a plain number means seconds"))
    }

    /// 0 is no limit, as in crontabs of the old wrapper.
    fn memory(&self) -> Result<Option<u64>, String> {
        let Some(text) = self.get("RLIMIT_AS") else { return Ok(None) };
        let mebibytes: u64 = text.parse().map_err(|_| format!("DCRON_RLIMIT_AS=`{text}` is not a number of MiB"))?;
        Ok((mebibytes > 0).then(|| mebibytes.saturating_mul(1 << 20)))
    }
}

fn text(name: &str, value: &OsStr) -> Result<String, String> {
    value.to_str().map(str::to_owned).ok_or_else(|| format!("{name} is not UTF-8"))
}

fn unknown(name: &str) -> String {
    let known: Vec<&str> = KNOWN.into_iter().filter(|name| *name != "FIFO").collect();
    format!("{PREFIX}{name} is not known; after {PREFIX} may stand {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str], env: &[(&str, &str)]) -> Result<Parameters, String> {
        Parameters::read(args.iter().map(Into::into), env.iter().map(|(name, value)| (name.into(), value.into())))
    }

    const ENV: [(&str, &str); 2] = [("DCRON_NAME", "a.%F"), ("DCRON_ZK", "h1:2181,h2/x")];

    #[test]
    fn the_command_line_wins_and_booleans_work_there_too() {
        let read = read(
            &["DCRON_LLAP=true", "DCRON_NAME=b", "DCRON_STDIOCAP=TRUE", "DCRON_COORD=etcd://h", "--", "run", "--", "x"],
            &[&ENV[..], &[("DCRON_LLAP", "false"), ("DCRON_MAXRETRY", "5"), ("PATH", "/bin")]].concat(),
        )
        .unwrap();
        assert_eq!((read.rule, read.captures, read.hosts_max), (Rule::LongLived, true, 5));
        assert_eq!((read.coordinator.as_str(), read.name.name.as_str()), ("etcd://h", "b"));
        assert_eq!(read.stick, Duration::from_secs(90));
        assert_eq!(read.command, ["run", "--", "x"]);
    }

    #[test]
    fn without_parameters_in_front_all_is_the_command() {
        for args in [&["rsync", "-a", "--", "x=1"][..], &["true"], &["A=1"]] {
            assert_eq!(read(args, &ENV).unwrap().command, args);
        }
        assert_eq!(read(&["--", "true"], &ENV).unwrap().command, ["true"]);
    }

    #[test]
    fn defaults_are_those_of_the_old_wrapper() {
        let read = read(&["true"], &ENV).unwrap();
        assert_eq!((read.rule, read.hosts_max, read.captures), (Rule::AtMostOnce, 2, true));
        assert_eq!((read.stick, read.ttl, read.keep), (Duration::ZERO, TTL_DEFAULT, KEEP_DEFAULT));
        assert_eq!(read.coordinator, "zookeeper://h1:2181,h2/x");
        assert_eq!((read.absent, read.user, read.memory_bytes_max), (Absent::Skip, None, None));
        assert_eq!(read.log_dir, PathBuf::from("/var/log/dcron"));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (arg, says) in [
            ("DCRON_NANE=a.%F", "DCRON_NANE is not known"),
            ("NAME=a.%F", "`NAME` is no parameter"),
            ("DCRON_FIFO=/x", "DCRON_FIFO is not known"),
            ("DCRON_LLAP=maybe", "neither true nor false"),
            ("DCRON_RETRYON=ALWAYS", "CRASH or ABEXIT"),
            ("DCRON_MAXRETRY=91", "from 1 to 90"),
            ("DCRON_MAXRETRY=-1", "from 1 to 90"),
            ("DCRON_TTL=1", "at least 2 seconds"),
            ("DCRON_KEEP=5m", "at least 10 minutes"),
            ("DCRON_STICK=1.5", "plain number means seconds"),
            ("DCRON_RLIMIT_AS=much", "number of MiB"),
            ("DCRON_ABSENT=wait", "run or skip"),
            ("DCRON_NAME=", "DCRON_NAME is missing"),
        ] {
            let wrong = read(&[arg, "--", "true"], &ENV).unwrap_err();
            assert!(wrong.contains(says), "{arg}: {wrong}");
        }
        assert!(read(&["DCRON_NAME=a.%F", "true"], &ENV).unwrap_err().contains("no `--`"));
        assert!(read(&["DCRON_NAME=a.%F", "--"], &ENV).unwrap_err().contains("no command"));
        assert!(read(&["true"], &ENV[..1]).unwrap_err().contains("no coordinator"));
        assert!(read(&["true"], &[&ENV[..], &[("DCRON_COORD", "etcd://h")]].concat()).unwrap_err().contains("two"));
        assert!(read(&["true"], &[&ENV[..], &[("DCRON_TYPO", "1")]].concat()).unwrap_err().contains("DCRON_TYPO"));
        let compat = [("DCRON_NAME", "a.%F"), ("DCRON_COORD", "etcd://h"), ("DCRON_COMPAT", "true")];
        assert!(read(&["true"], &compat).unwrap_err().contains("on ZooKeeper"));
        let compat = [&ENV[..], &[("DCRON_LLAP", "true"), ("DCRON_COMPAT", "true")]].concat();
        assert!(read(&["true"], &compat).unwrap_err().contains("does not go with DCRON_LLAP"));
        assert!(read(&["true"], &[&ENV[..], &[("DCRON_COMPAT", "true")]].concat()).unwrap().compat);
    }

    #[test]
    fn inside_of_another_command_its_saved_values_are_no_parameters() {
        let env = [&ENV[..], &[("DCRON_FIFO", "/run/x"), ("DCRON_OFFSET", "7")]].concat();
        assert!(read(&["true"], &env).is_ok());
    }

    #[test]
    fn zeros_of_the_old_wrapper_mean_what_they_meant_there() {
        let old = read(&["DCRON_RLIMIT_AS=0", "DCRON_MAXRETRY=0", "--", "true"], &ENV).unwrap();
        assert_eq!((old.memory_bytes_max, old.hosts_max), (None, 1));
        assert!(old.doubts.len() == 1 && old.doubts[0].contains("DCRON_MAXRETRY=0"), "{:?}", old.doubts);
        assert!(read(&["DCRON_MAXRETRY=1", "--", "true"], &ENV).unwrap().doubts.is_empty());
    }

    #[test]
    fn a_user_may_have_a_group_and_memory_any_size() {
        let read = read(&["DCRON_USER=joe:ops", "DCRON_RLIMIT_AS=18446744073709551615", "--", "true"], &ENV).unwrap();
        assert_eq!(read.user, Some(("joe".into(), Some("ops".into()))));
        assert_eq!(read.memory_bytes_max, Some(u64::MAX));
    }
}
