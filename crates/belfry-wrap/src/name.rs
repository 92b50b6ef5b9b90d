//! `DCRON_NAME`: a name, a dot, and an instance as date(1) writes it: `dbbackup.%F_%H%M`.

use jiff::Zoned;

use crate::stamp::{changes_with_time, stamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: String,
    /// None: of a long-lived process, which needs none.
    format: Option<String>,
}

/// Room for the rest of a key and for a file name.
const NAME_BYTES_MAX: usize = 128;
const INSTANCE_BYTES_MAX: usize = 96;

impl Name {
    pub(crate) fn parse(text: &str, is_long_lived: bool) -> Result<Name, String> {
        // Crontabs need the backslash on the command line; in an environment line it stays.
        let text = text.replace("\\%", "%");
        let (name, format) = match text.find('%') {
            None => (text.as_str(), None),
            Some(percent) => {
                let dot = text[..percent].rfind('.').ok_or_else(|| {
                    format!("DCRON_NAME=`{text}` has no dot before its first `%`; write NAME.FORMAT, such as {EXAMPLE}")
                })?;
                (&text[..dot], Some(&text[dot + 1..]))
            }
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(format!(
                "DCRON_NAME=`{text}`: a name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
            ));
        }
        if name.starts_with('.') || name.contains('/') {
            return Err(format!(
                "DCRON_NAME=`{text}`: a name is part of file names; it has no `/` and no dot in front"
            ));
        }
        let changes =
            format.map(changes_with_time).transpose().map_err(|wrong| format!("DCRON_NAME=`{text}`: {wrong}"))?;
        if !is_long_lived && changes != Some(true) {
            return Err(format!(
                "DCRON_NAME=`{text}`: its instance does not change with time, so it would run once for ever; write NAME.FORMAT, such as {EXAMPLE}"
            ));
        }
        Ok(Name { name: name.to_owned(), format: format.map(str::to_owned) })
    }

    /// The instance of a point in local time.
    pub(crate) fn instance(&self, at: &Zoned) -> Result<String, String> {
        let instance = self.format.as_deref().map(|format| stamp(format, at)).transpose();
        let instance = instance.map_err(|wrong| format!("DCRON_NAME: {wrong}"))?.unwrap_or_default();
        if instance.len() > INSTANCE_BYTES_MAX {
            return Err(format!(
                "DCRON_NAME: its instance has {} bytes; at most {INSTANCE_BYTES_MAX} fit",
                instance.len()
            ));
        }
        Ok(instance)
    }
}

const EXAMPLE: &str = "dbbackup.%F_%H%M";

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Zoned {
        "2026-11-17T02:30:05+01:00[Europe/Berlin]".parse().unwrap()
    }

    #[test]
    fn the_name_ends_at_the_last_dot_before_the_first_percent_sign() {
        for (text, name, instance) in [
            ("dbbackup.%F_%H%M", "dbbackup", "2026-11-17_0230"),
            ("db.backup.%H.%M", "db.backup", "02.30"),
            (r"a.\%F_\%H\%M", "a", "2026-11-17_0230"),
            ("a.v1-%j", "a", "v1-321"),
        ] {
            let parsed = Name::parse(text, false).unwrap();
            assert_eq!((parsed.name.as_str(), parsed.instance(&at()).unwrap().as_str()), (name, instance), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_or_never_changes_is_refused_with_what_to_write() {
        for (text, says) in [
            ("dbbackup", "does not change"),
            ("a.%%", "does not change"),
            ("a.%Z", "does not change"),
            ("%F", "no dot before"),
            (".%F", "1 to 128 bytes"),
            ("a.%Q", "`%Q`"),
            ("a/b.%F", "no `/`"),
            ("..%F", "no dot in front"),
        ] {
            let wrong = Name::parse(text, false).unwrap_err();
            assert!(wrong.contains(says), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_long_lived_process_needs_no_instance() {
        let plain = Name::parse("queue.worker", true).unwrap();
        assert_eq!((plain.name.as_str(), plain.instance(&at()).unwrap().as_str()), ("queue.worker", ""));
        assert_eq!(Name::parse("queue.%F_%H%M", true).unwrap().name, "queue");
    }
}
