//! Telling a receiver what became of a run: on which news, in which words, and when it is tried again. It posts nothing itself.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::job::{Webhook, WebhookFormat};
use crate::run::RunState;
use crate::{JobId, RunId, retry};

/// What is told when `webhook.on` is left out: every end of work that was started or may have been.
pub const ON_DEFAULT: [RunState; 5] =
    [RunState::Succeeded, RunState::Failed, RunState::TimedOut, RunState::Killed, RunState::Lost];

const FIRST_DELAY: Duration = Duration::from_secs(5);
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// A delay is made longer by up to this part of it, so that what failed together does not come back together.
const SPREAD: f64 = 0.2;
/// Counted from the first try. After it a delivery is given up.
pub const TRIED_FOR: Duration = Duration::from_secs(24 * 3600);

/// What a delivery tells of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum News {
    /// It ended so. `lost` that is corrected later is told again, as what it became.
    Ended(RunState),
    /// It goes on beyond its time, with `timeout.action: report`.
    Overdue,
}

impl News {
    pub fn as_str(self) -> &'static str {
        match self {
            News::Ended(state) => state.as_str(),
            News::Overdue => "overdue",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "overdue" => Some(News::Overdue),
            _ => RunState::parse(text).filter(|state| state.is_ended()).map(News::Ended),
        }
    }

    /// The run's state when it was told.
    pub fn state(self) -> RunState {
        match self {
            News::Ended(state) => state,
            News::Overdue => RunState::Running,
        }
    }
}

/// One bit per end, for a column that says which ends of a job are told.
pub fn bit(state: RunState) -> u32 {
    RunState::ALL.into_iter().position(|known| known == state).map_or(0, |place| 1 << place)
}

impl Webhook {
    /// The ends that are told.
    pub fn told(&self) -> Vec<RunState> {
        match self.on.is_empty() {
            true => ON_DEFAULT.to_vec(),
            false => self.on.iter().filter_map(|on| RunState::parse(on)).filter(|state| state.is_ended()).collect(),
        }
    }

    pub fn told_bits(&self) -> u32 {
        self.told().into_iter().fold(0, |bits, state| bits | bit(state))
    }

    /// Scheme, host and port: what deliveries that must not wait for each other differ in.
    pub fn receiver(&self) -> String {
        receiver_of(&self.url).unwrap_or_default()
    }
}

/// None: it is not an address that can be called.
pub fn receiver_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    if !["http", "https"].contains(&scheme) || !url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of an IPv6 address in brackets is not that of a port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let is_name =
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if !is_bracketed && !is_name || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return None;
    }
    let port = port.unwrap_or(if scheme == "https" { "443" } else { "80" });
    Some(format!("{scheme}://{}:{port}", host.to_ascii_lowercase()))
}

/// The same at every repetition, so that a receiver can tell a repetition from something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeliveryId {
    pub run: RunId,
    pub attempt: u32,
    pub news: News,
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.run, self.attempt, self.news.as_str())
    }
}

/// What is told, as it was when it happened, and how far the telling is.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub job: JobId,
    pub namespace: String,
    pub job_name: String,
    pub revision: u64,
    pub reason: Option<String>,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub node_name: Option<String>,
    /// The result came in after the run had been given up as lost.
    pub late: bool,
    pub receiver: String,
    pub tries: u32,
    pub first_try_at: Option<Timestamp>,
    pub last_try_at: Option<Timestamp>,
    /// Of the last try; none: there was no answer.
    pub last_status: Option<u16>,
    /// Why the last try was in vain.
    pub last_error: Option<String>,
    /// None: it is not tried again.
    pub next_try_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
}

/// What became of a delivery so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Waiting,
    Delivered,
    GivenUp,
}

impl Fate {
    pub fn as_str(self) -> &'static str {
        match self {
            Fate::Waiting => "waiting",
            Fate::Delivered => "delivered",
            Fate::GivenUp => "given_up",
        }
    }
}

impl Delivery {
    pub fn fate(&self) -> Fate {
        match (self.delivered_at, self.next_try_at) {
            (Some(_), _) => Fate::Delivered,
            (None, Some(_)) => Fate::Waiting,
            (None, None) => Fate::GivenUp,
        }
    }

    /// The same bytes at every repetition.
    pub fn body(&self, format: WebhookFormat) -> String {
        match format {
            WebhookFormat::Json => self.as_json(),
            WebhookFormat::Form => self.as_form(),
        }
    }

    fn as_json(&self) -> String {
        let DeliveryId { run, attempt, news } = self.id;
        // Always three decimals, as the API writes them.
        let moment = |at: Timestamp| format!("{at:.3}");
        json!({
            "delivery": self.id.to_string(),
            "event": format!("run.{}", news.as_str()),
            "run": run,
            "attempt": attempt,
            "job": {
                "id": self.job, "namespace": self.namespace, "name": self.job_name, "revision": self.revision,
            },
            "state": news.state(),
            "reason": self.reason,
            "planned": moment(self.planned),
            "started_at": self.started_at.map(moment),
            "ended_at": self.ended_at.map(moment),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "node": self.node_name,
            "late": self.late,
        })
        .to_string()
    }

    fn as_form(&self) -> String {
        let (run, job) = (self.id.run.to_string(), self.job.to_string());
        let fields = [
            ("task_id", run.as_str()),
            ("job_id", &job),
            ("job_name", &self.job_name),
            ("task_status", self.id.news.as_str()),
            ("msg", self.reason.as_deref().unwrap_or_default()),
        ];
        fields.map(|(name, value)| format!("{name}={}", percent_encoded(value))).join("&")
    }

    /// When it is tried again after a try at `now` that was in vain; None: it is given up.
    pub fn next_try(&self, now: Timestamp) -> Option<Timestamp> {
        let tried = self.tries + 1;
        let doubled = FIRST_DELAY.saturating_mul(1 << tried.saturating_sub(1).min(20));
        let shift = retry::spread(self.id.run, tried) * SPREAD;
        let next = now.saturating_add(doubled.min(DELAY_MAX).mul_f64(1.0 + shift)).ok()?;
        let until = self.first_try_at.unwrap_or(now).saturating_add(TRIED_FOR).ok()?;
        (next <= until).then_some(next)
    }
}

/// As `application/x-www-form-urlencoded` has it.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_794_700_800 + second).unwrap()
    }

    fn failed() -> Delivery {
        Delivery {
            id: DeliveryId { run: RunId::from_u128(7), attempt: 2, news: News::Ended(RunState::Failed) },
            job: JobId::from_u128(9),
            namespace: "default".into(),
            job_name: "dbbackup".into(),
            revision: 3,
            reason: Some("exit code 3: a & b = 50 %".into()),
            planned: at(0),
            started_at: Some(at(1)),
            ended_at: Some(at(2)),
            exit_code: Some(3),
            signal: None,
            node_name: Some("db1".into()),
            late: false,
            receiver: "https://x:443".into(),
            tries: 0,
            first_try_at: None,
            last_try_at: None,
            last_status: None,
            last_error: None,
            next_try_at: Some(at(2)),
            delivered_at: None,
        }
    }

    #[test]
    fn the_json_body_has_its_documented_shape() {
        let body: serde_json::Value = serde_json::from_str(&failed().body(WebhookFormat::Json)).unwrap();
        let expected = json!({
            "delivery": "00000000000000000000000007-2-failed", "event": "run.failed", "run": "00000000000000000000000007", "attempt": 2,
            "job": {"id": "00000000000000000000000009", "namespace": "default", "name": "dbbackup", "revision": 3},
            "state": "failed", "reason": "exit code 3: a & b = 50 %", "planned": "2026-11-15T00:00:00.000Z",
            "started_at": "2026-11-15T00:00:01.000Z", "ended_at": "2026-11-15T00:00:02.000Z", "exit_code": 3, "signal": null,
            "node": "db1", "late": false,
        });
        assert_eq!(body, expected);
        let id = DeliveryId { news: News::Overdue, ..failed().id };
        let body = Delivery { id, ended_at: None, ..failed() }.body(WebhookFormat::Json);
        assert!(body.contains("\"event\":\"run.overdue\"") && body.contains("\"state\":\"running\""), "{body}");
    }

    #[test]
    fn the_form_has_the_old_fields() {
        assert_eq!(
            failed().body(WebhookFormat::Form),
            "task_id=00000000000000000000000007&job_id=00000000000000000000000009&job_name=dbbackup&task_status=failed\
             &msg=exit+code+3%3A+a+%26+b+%3D+50+%25"
        );
    }

    #[test]
    fn tries_come_ever_later_and_end_after_a_day() {
        let mut delivery = failed();
        let (mut now, mut delays) = (at(100), Vec::new());
        delivery.first_try_at = Some(now);
        while let Some(next) = delivery.next_try(now) {
            delays.push(next.as_second() - now.as_second());
            delivery.tries += 1;
            now = next;
        }
        assert!((5..=6).contains(&delays[0]) && (10..=12).contains(&delays[1]), "{delays:?}");
        assert!(delays[..9].is_sorted() && delays.iter().all(|delay| *delay <= 4320), "{delays:?}");
        assert!(now.as_second() - at(100).as_second() > 22 * 3600 && now <= at(100 + 24 * 3600), "{delays:?}");
        assert!((25..40).contains(&delays.len()), "{delays:?}");
    }

    #[test]
    fn what_is_left_out_means_every_end_of_work() {
        let hook = |on: &[&str]| Webhook {
            url: "https://x".into(),
            on: on.iter().map(|on| (*on).to_owned()).collect(),
            format: WebhookFormat::Json,
        };
        assert_eq!(hook(&[]).told(), ON_DEFAULT);
        assert_eq!(hook(&["failed", "skipped"]).told(), [RunState::Failed, RunState::Skipped]);
        assert_eq!(hook(&["failed"]).told_bits(), bit(RunState::Failed));
        for state in RunState::ALL.into_iter().filter(|state| state.is_ended()) {
            assert_eq!(News::parse(state.as_str()), Some(News::Ended(state)));
        }
        assert_eq!((News::parse("overdue"), News::parse("running")), (Some(News::Overdue), None));
    }

    #[test]
    fn a_receiver_is_scheme_host_and_port() {
        for (url, receiver) in [
            ("https://Hooks.Example/a?b=c", Some("https://hooks.example:443")),
            ("http://10.0.0.1:8080", Some("http://10.0.0.1:8080")),
            ("http://[fd00::1]/x", Some("http://[fd00::1]:80")),
            ("http://[fd00::1]:81/x", Some("http://[fd00::1]:81")),
            ("https://x#y", Some("https://x:443")),
            ("ftp://x", None),
            ("https://", None),
            ("https://a b", None),
            ("https://u:p@x/", None),
            ("https://x:99999/", None),
            ("https://x\\@y/", None),
            ("x", None),
        ] {
            assert_eq!(receiver_of(url).as_deref(), receiver, "{url}");
        }
    }
}
