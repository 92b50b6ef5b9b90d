//! What jobs themselves write down, outside of Belfry: a line when a run starts and one when it comes to its end.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use jiff::Timestamp;
use tempfile::TempDir;

/// A folder that any user may write to, with a file per job.
pub struct Witness {
    folder: TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Started,
    Finished,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub mark: Mark,
    pub run: String,
    pub planned: Timestamp,
    pub fence: u64,
    pub at: Timestamp,
}

impl Witness {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-witness-").tempdir().expect("a temporary folder");
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open_to_all).expect("a folder of our own");
        Self { folder }
    }

    pub fn file(&self, job: &str) -> PathBuf {
        self.folder.path().join(job)
    }

    /// A shell command that bears witness around `work`. Each line is one append, so lines of several processes stay whole.
    pub fn command(&self, job: &str, work: &str) -> String {
        let file = self.file(job).display().to_string();
        let say = |mark: &str| {
            format!(
                r#"printf '{mark} %s %s %s %s\n' "$BELFRY_RUN_ID" "$BELFRY_SCHEDULED_AT" "$BELFRY_FENCE" "$EPOCHREALTIME" >> {file}"#
            )
        };
        format!("umask 0; {}\n{work}\n{}", say("S"), say("F"))
    }

    /// In the order in which they were written.
    pub fn lines(&self, job: &str) -> Vec<Line> {
        let text = std::fs::read_to_string(self.file(job)).unwrap_or_default();
        text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{job} wrote `{line}`"))).collect()
    }

    pub fn starts(&self, job: &str) -> Vec<Line> {
        self.lines(job).into_iter().filter(|line| line.mark == Mark::Started).collect()
    }
}

impl Default for Witness {
    fn default() -> Self {
        Self::new()
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let mark = match words.next()? {
        "S" => Mark::Started,
        "F" => Mark::Finished,
        _ => return None,
    };
    let run = words.next()?.to_owned();
    let planned = words.next()?.parse().ok()?;
    let fence = words.next()?.parse().ok()?;
    let (seconds, micros) = words.next()?.split_once('.')?;
    let at = Timestamp::new(seconds.parse().ok()?, micros.parse::<i32>().ok()? * 1000).ok()?;
    words.next().is_none().then_some(Line { mark, run, planned, fence, at })
}
