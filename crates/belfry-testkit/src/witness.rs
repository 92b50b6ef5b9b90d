//! What jobs themselves write down, outside of Belfry: a line when a run starts and one when it comes to its end.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use jiff::Timestamp;
use tempfile::TempDir;

/// Where the lines are.
pub const LINES: &str = "lines";

/// One file for all jobs, in a folder that any user may write to.
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
    pub job: String,
    pub run: String,
    pub attempt: u32,
    pub planned: Timestamp,
    pub fence: u64,
    pub node: String,
    pub incarnation: u64,
    pub at: Timestamp,
}

impl Witness {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-witness-").tempdir().expect("a temporary folder");
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open_to_all).expect("a folder of our own");
        Self { folder }
    }

    /// A file beside the lines, for whatever else a job leaves.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A shell command that bears witness around `work`. Each line is one append, so lines of several processes stay whole.
    pub fn command(&self, job: &str, work: &str) -> String {
        let file = self.file(LINES).display().to_string();
        let say = |mark: &str| {
            format!(
                r#"printf '{mark} {job} %s %s %s %s %s %s %s\n' "$BELFRY_RUN_ID" "$BELFRY_ATTEMPT" "$BELFRY_SCHEDULED_AT" "$BELFRY_FENCE" "$BELFRY_NODE" "$BELFRY_INCARNATION" "$EPOCHREALTIME" >> {file}"#
            )
        };
        format!("umask 0; {}\n{work}\n{}", say("S"), say("F"))
    }

    /// In the order in which they were written.
    pub fn all(&self) -> Vec<Line> {
        let mut from = 0;
        self.news(&mut from)
    }

    /// What was written after the first `from` bytes, which is moved on.
    pub fn news(&self, from: &mut u64) -> Vec<Line> {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(self.file(LINES)) {
            file.seek(SeekFrom::Start(*from)).expect("seek in a file");
            file.read_to_string(&mut text).expect("what jobs wrote");
        }
        // A line that is being written is read as a whole the next time.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        *from += text.len() as u64;
        text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("a job wrote `{line}`"))).collect()
    }

    pub fn lines(&self, job: &str) -> Vec<Line> {
        self.all().into_iter().filter(|line| line.job == job).collect()
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
    let job = words.next()?.to_owned();
    let run = words.next()?.to_owned();
    let attempt = words.next()?.parse().ok()?;
    let planned = words.next()?.parse().ok()?;
    let fence = words.next()?.parse().ok()?;
    let node = words.next()?.to_owned();
    let incarnation = words.next()?.parse().ok()?;
    let (seconds, micros) = words.next()?.split_once('.')?;
    let at = Timestamp::new(seconds.parse().ok()?, micros.parse::<i32>().ok()? * 1000).ok()?;
    words.next().is_none().then_some(Line { mark, job, run, attempt, planned, fence, node, incarnation, at })
}
