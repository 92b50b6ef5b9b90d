//! The job document: every field that a user may write, its type and its default. The rules are in `validate`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Action;
use crate::schedule::{DstRule, Window};
use crate::units::{Size, Span};

/// Written into `namespace` when it is left out.
pub const DEFAULT_NAMESPACE: &str = "default";
/// How much of a run's output is kept when `output.keep` is left out.
pub const OUTPUT_KEEP_DEFAULT: Size = Size::from_bytes(1 << 20);
/// TERM to KILL when `timeout.grace` is left out, and for kills by hand.
pub const KILL_GRACE_DEFAULT: Span = Span::from_secs(10);

/// What is left out has its default, and a default is left out when written: a stored document stays as short as its author
/// wrote it. Unknown fields are refused by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobDocument {
    pub name: String,
    #[serde(default = "default_namespace")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<String>,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Expressions::is_empty")]
    pub schedule: Expressions,
    /// The cluster's default zone is written in when a job is saved without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub dst: DstRule,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub misfire: Misfire,
    #[serde(default, skip_serializing_if = "is_default")]
    pub run_on: RunOn,
    #[serde(default, skip_serializing_if = "is_default")]
    pub select: Select,
    #[serde(default, skip_serializing_if = "is_default")]
    pub placement: Placement,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
    pub action: Action,
    #[serde(default, rename = "as", skip_serializing_if = "is_default")]
    pub run_as: RunAs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub overlap: Overlap,
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_cut_off: WhenCutOff,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: Output,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retention: Retention,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Expectation>,
}

impl JobDocument {
    /// A document with only what is required.
    pub fn new(name: impl Into<String>, action: Action) -> Self {
        let value = serde_json::json!({ "name": name.into(), "action": action });
        serde_json::from_value(value).expect("name and action are all that is required")
    }

    pub fn output_keep_bytes(&self) -> u64 {
        self.output.keep.unwrap_or(OUTPUT_KEEP_DEFAULT).bytes()
    }
}

fn default_namespace() -> String {
    DEFAULT_NAMESPACE.to_owned()
}
fn yes() -> bool {
    true
}
fn is_yes(value: &bool) -> bool {
    *value
}
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One expression or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expressions(pub Vec<String>);

impl Expressions {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Expressions {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(s),
            many => many.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Expressions {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Expressions;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a schedule such as \"0 4 * * *\", or a list of them")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Expressions, E> {
                Ok(Expressions(vec![text.to_owned()]))
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<Expressions, E> {
                Ok(Expressions::default())
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Expressions, A::Error> {
                let mut expressions = Vec::new();
                while let Some(text) = seq.next_element::<String>()? {
                    expressions.push(text);
                }
                Ok(Expressions(expressions))
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// What becomes of fires that passed while nobody could run them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Misfire {
    #[serde(default)]
    pub policy: MisfirePolicy,
    /// How late a fire may still start.
    #[serde(default = "one_hour")]
    pub within: Span,
    /// `all` only: at most so many missed fires are run, the newest ones.
    #[serde(default = "ten")]
    pub limit: u32,
}

fn one_hour() -> Span {
    Span::from_secs(3600)
}
fn ten() -> u32 {
    10
}

impl Default for Misfire {
    fn default() -> Self {
        Self { policy: MisfirePolicy::default(), within: one_hour(), limit: ten() }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
    };
}

words!(MisfirePolicy {
    Skip,
    #[default]
    Latest,
    All
});
words!(RunOn {
    #[default]
    One,
    Each,
    Home
});
words!(
    /// What becomes of a fire when a run of the job is still going.
    Overlap { #[default] Forbid, Queue, Allow, Replace }
);
words!(WhenCutOff {
    #[default]
    Finish,
    Stop
});
words!(TimeoutAction {
    #[default]
    Kill,
    Report
});
words!(Backoff {
    Fixed,
    #[default]
    Exponential
});
words!(RetryWhere {
    Same,
    Other,
    #[default]
    Any
});
words!(WebhookFormat {
    #[default]
    Json,
    Form
});

/// How a node is chosen among those that can take a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    #[default]
    Weighted,
    Least,
    Random,
    /// The node of the last run, for this long after it.
    Sticky(Span),
    Hash,
}

/// How long a job stays on its node when only `sticky` is written: a weekly job stays too.
pub const STICKY_DEFAULT: Span = Span::from_secs(14 * 86_400);

impl Placement {
    /// Without the time of `sticky`.
    pub fn word(self) -> &'static str {
        match self {
            Placement::Weighted => "weighted",
            Placement::Least => "least",
            Placement::Random => "random",
            Placement::Sticky(_) => "sticky",
            Placement::Hash => "hash",
        }
    }
}

impl Serialize for Placement {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Placement::Sticky(holds) if *holds != STICKY_DEFAULT => s.collect_map([("sticky", holds)]),
            Placement::Weighted | Placement::Least | Placement::Random | Placement::Sticky(_) | Placement::Hash => {
                s.serialize_str(self.word())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Placement {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Placement;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("weighted, least, random, hash, sticky, or a time to stay such as {sticky: 10m}")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Placement, E> {
                let words = [Placement::Weighted, Placement::Least, Placement::Random, Placement::Hash];
                let all = words.into_iter().chain([Placement::Sticky(STICKY_DEFAULT)]);
                let found = all.into_iter().find(|placement| placement.word() == text);
                found.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Placement, A::Error> {
                match map.next_key::<String>()?.as_deref() {
                    Some("sticky") => {}
                    Some(other) => return Err(serde::de::Error::unknown_field(other, &["sticky"])),
                    None => return Err(serde::de::Error::missing_field("sticky")),
                }
                let holds = map.next_value()?;
                match map.next_key::<String>()? {
                    None => Ok(Placement::Sticky(holds)),
                    Some(other) => Err(serde::de::Error::unknown_field(&other, &["sticky"])),
                }
            }
        }
        d.deserialize_any(Visitor)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunAs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Octal text, as `"027"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<String>,
}

/// Memory, cpus and processes are those of the whole tree, the others of each of its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<Size>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeout {
    pub after: Span,
    #[serde(default, skip_serializing_if = "is_default")]
    pub action: TimeoutAction,
    /// TERM to KILL.
    #[serde(default = "kill_grace")]
    pub grace: Span,
}

fn kill_grace() -> Span {
    KILL_GRACE_DEFAULT
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Starts in all, the first included.
    pub attempts: u32,
    /// `failed`, `timed_out`, `lost`, `exit:N`.
    #[serde(default = "on_failed")]
    pub on: Vec<String>,
    #[serde(default = "ten_seconds")]
    pub delay: Span,
    #[serde(default)]
    pub backoff: Backoff,
    #[serde(default = "five_minutes")]
    pub max_delay: Span,
    #[serde(default, rename = "where")]
    pub on_node: RetryWhere,
}

fn on_failed() -> Vec<String> {
    vec!["failed".to_owned(), "timed_out".to_owned()]
}
fn ten_seconds() -> Span {
    Span::from_secs(10)
}
fn five_minutes() -> Span {
    Span::from_secs(300)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Size>,
    /// Words separated by `|`; a hit turns an exit-0 run into failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fail_on: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    /// Ends of runs; none: `webhook::ON_DEFAULT`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: WebhookFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_within: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Span>,
}
