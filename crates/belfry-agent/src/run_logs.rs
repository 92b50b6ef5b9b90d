//! A file per attempt with what it printed, in a folder of its day: `DIR/2026-11-17/<namespace>.<job>.<run>.<attempt>.log`. Written by
//! a thread of its own: a disk that is slow, full or gone delays no run and fails none, it only leaves holes, which are marked.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use belfry_core::units::Size;
use belfry_exec::OutputCopy;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::key::Key;
use crate::local::instant;
use crate::own_time::NodeClock;

/// Where files of runs go, and how much of them stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLogsConfig {
    /// Made when it is missing, for the agent's user and group only.
    pub folder: PathBuf,
    /// Folders of days before this are removed. None: never.
    pub keep: Option<Duration>,
    /// What one file may take; what is beyond it is left out, and that is said there.
    pub file_max: Size,
}

/// Pieces on their way to the disk, 64 KiB each at most: 16 MiB.
const PIECES_IN_FLIGHT_MAX: usize = 256;
/// Behind these there is room for what must still be said of attempts that have ended: a mark has no bytes.
const MESSAGES_IN_FLIGHT_MAX: usize = PIECES_IN_FLIGHT_MAX + 4096;
/// Namespace and job, each; the run's id makes a name unique.
const NAME_CHARS_MAX: usize = 80;
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
const FOLDER_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

pub(crate) struct RunLogs {
    config: RunLogsConfig,
    to_writer: ToWriter,
}

/// Never waits.
#[derive(Clone)]
struct ToWriter {
    sender: SyncSender<Message>,
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    messages: AtomicUsize,
    /// Attempts of which not even a mark had room.
    unmarked: AtomicU64,
}

enum Message {
    /// It has begun: there is a file even if it prints nothing.
    Begun(Arc<LogFile>),
    Piece(Arc<LogFile>, Piece),
    Prune {
        today: Date,
        keep: Duration,
    },
}

struct Piece {
    bytes: Vec<u8>,
    /// What could not be handed over before these.
    lost_bytes: u64,
    /// The file has all that it may.
    is_cut: bool,
}

/// Opened by the writer, closed when neither it nor the run needs it any more.
struct LogFile {
    path: PathBuf,
    open: std::sync::Mutex<Option<Result<File, ()>>>,
}

impl RunLogs {
    pub(crate) fn start(config: RunLogsConfig) -> io::Result<Self> {
        make_folder(&config.folder)?;
        let (to_writer, messages) = queue();
        let (folder, waiting) = (config.folder.clone(), Arc::clone(&to_writer.waiting));
        // Fate: ends with the agent, after what it was given by then.
        std::thread::Builder::new().name("run-logs".into()).spawn(move || write_all(&folder, &messages, &waiting))?;
        Ok(Self { config, to_writer })
    }

    /// Where the output of an attempt that starts now is copied to.
    pub(crate) fn begin(&self, namespace: &str, job: &str, key: Key, now: Timestamp) -> OutputCopy {
        let name = format!("{}.{}.{}.{}.log", safe(namespace), safe(job), key.run, key.attempt);
        let path = self.config.folder.join(day(now).to_string()).join(name);
        let file = Arc::new(LogFile { path, open: std::sync::Mutex::new(None) });
        let mut hand_over = HandOver::begin(self.to_writer.clone(), file, self.config.file_max);
        Box::new(move |bytes| hand_over.take(bytes))
    }

    /// Old folders go at the start, and as days pass.
    pub(crate) async fn prune(&self, clock: &NodeClock) {
        let Some(keep) = self.config.keep else { return };
        loop {
            self.to_writer.offer(Message::Prune { today: day(instant(clock.now().wall_ms)), keep });
            tokio::time::sleep(PRUNE_EVERY).await;
        }
    }
}

fn queue() -> (ToWriter, Receiver<Message>) {
    let (sender, messages) = sync_channel(MESSAGES_IN_FLIGHT_MAX);
    (ToWriter { sender, waiting: Arc::default() }, messages)
}

impl ToWriter {
    /// False: there is no room now, or nobody writes any more.
    fn offer(&self, message: Message) -> bool {
        self.send(message, PIECES_IN_FLIGHT_MAX)
    }

    /// What nobody could say later.
    fn say_last(&self, mark: Message) {
        if !self.send(mark, MESSAGES_IN_FLIGHT_MAX) {
            self.waiting.unmarked.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, message: Message, waiting_max: usize) -> bool {
        let before = self.waiting.messages.fetch_add(1, Ordering::Relaxed);
        let is_sent = before < waiting_max && self.sender.try_send(message).is_ok();
        if !is_sent {
            self.waiting.messages.fetch_sub(1, Ordering::Relaxed);
        }
        is_sent
    }
}

/// The run's side.
struct HandOver {
    to_writer: ToWriter,
    file: Arc<LogFile>,
    room: u64,
    lost_bytes: u64,
    is_cut: bool,
    /// The writer has heard all of this; what it has not is said with the next piece, or when the attempt has ended.
    is_said: bool,
}

impl HandOver {
    fn begin(to_writer: ToWriter, file: Arc<LogFile>, file_max: Size) -> Self {
        let is_said = to_writer.offer(Message::Begun(Arc::clone(&file)));
        Self { to_writer, file, room: file_max.bytes(), lost_bytes: 0, is_cut: false, is_said }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.is_cut && self.is_said {
            return;
        }
        let fits = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.room -= fits as u64;
        self.is_cut |= fits < bytes.len();
        self.is_said = self.to_writer.offer(self.piece(&bytes[..fits]));
        self.lost_bytes = if self.is_said { 0 } else { self.lost_bytes + fits as u64 };
    }

    fn piece(&self, bytes: &[u8]) -> Message {
        let piece = Piece { bytes: bytes.to_vec(), lost_bytes: self.lost_bytes, is_cut: self.is_cut };
        Message::Piece(Arc::clone(&self.file), piece)
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if !self.is_said {
            self.to_writer.say_last(self.piece(&[]));
        }
    }
}

fn write_all(folder: &Path, messages: &Receiver<Message>, waiting: &Waiting) {
    let mut is_in_trouble = false;
    for message in messages {
        waiting.messages.fetch_sub(1, Ordering::Relaxed);
        let done = match &message {
            Message::Begun(file) => file.with(|_| Ok(())),
            Message::Piece(file, piece) => file.with(|file| piece.write(file)),
            Message::Prune { today, keep } => prune(folder, *today, *keep),
        };
        match done {
            Ok(()) if is_in_trouble => {
                is_in_trouble = false;
                tracing::info!("files of runs in {} are written again", folder.display());
            }
            Ok(()) => {}
            Err(cause) => {
                // Once, not for each of thousands of runs.
                if !is_in_trouble {
                    let folder = folder.display();
                    tracing::warn!("files of runs in {folder} are not complete: {cause}; the runs themselves go on");
                }
                is_in_trouble = true;
            }
        }
        let unmarked = waiting.unmarked.swap(0, Ordering::Relaxed);
        if unmarked > 0 {
            let folder = folder.display();
            tracing::warn!(
                "{folder} was not written for long: the files of {unmarked} attempts are not complete and do not say so"
            );
        }
    }
}

impl LogFile {
    /// A file that failed once is left as it is.
    fn with(&self, work: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if open.is_none() {
            *open = Some(Err(()));
            *open = Some(Ok(create(&self.path)?));
        }
        let Some(Ok(file)) = open.as_mut() else { return Ok(()) };
        let done = work(file);
        if done.is_err() {
            *open = Some(Err(()));
        }
        done
    }
}

impl Piece {
    fn write(&self, file: &mut File) -> io::Result<()> {
        if self.lost_bytes > 0 {
            writeln!(file, "\n[belfry: {} bytes are missing here, the disk was too slow]", self.lost_bytes)?;
        }
        file.write_all(&self.bytes)?;
        if self.is_cut {
            writeln!(file, "\n[belfry: the rest is not in this file, which has all that --run-logs-max allows]")?;
        }
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    // Never through something that is there already, least of all a link.
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)
}

fn prune(folder: &Path, today: Date, keep: Duration) -> io::Result<()> {
    let oldest = SignedDuration::try_from(keep).ok().and_then(|keep| today.checked_sub(keep).ok()).unwrap_or(Date::MIN);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(day) = name.to_str().and_then(dated) else { continue };
        if day < oldest && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The day that a folder is named after; None: it is none of ours.
fn dated(name: &str) -> Option<Date> {
    let day: Date = name.parse().ok()?;
    (day.to_string() == name).then_some(day)
}

fn day(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

/// A name as a part of a file's name, whatever a server says that it is.
fn safe(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().take(NAME_CHARS_MAX).map(|c| if is_safe(c) { c } else { '_' }).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use belfry_core::RunId;

    use super::*;

    const NOON: &str = "2026-11-17T12:00:00Z";

    fn logs(folder: &Path, file_max: u64) -> RunLogs {
        let file_max = Size::from_bytes(file_max);
        RunLogs::start(RunLogsConfig { folder: folder.to_owned(), keep: None, file_max }).unwrap()
    }

    fn key() -> Key {
        Key { run: RunId::from_u128(7), attempt: 2 }
    }

    fn until(fact: impl Fn() -> bool) {
        for _ in 0..30_000 {
            if fact() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("waited in vain");
    }

    #[test]
    fn what_was_printed_is_in_a_file_of_its_day_that_only_the_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("logs");
        let logs = logs(&place, 1 << 20);
        let mut copy = logs.begin("default", "dbbackup", key(), NOON.parse().unwrap());
        let file = place.join("2026-11-17/default.dbbackup.00000000000000000000000007.2.log");
        until(|| file.exists());
        copy(b"one\n");
        copy(b"two \xff\n");
        until(|| std::fs::read(&file).unwrap() == b"one\ntwo \xff\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&file) & !FILE_MODE, 0);
        assert_eq!((mode(&place) & !FOLDER_MODE, mode(file.parent().unwrap()) & !FOLDER_MODE), (0, 0));
    }

    #[test]
    fn a_file_has_a_bound_and_says_when_it_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(folder.path(), 10);
        let mut copy = logs.begin("a", "b", key(), NOON.parse().unwrap());
        copy(b"12345678");
        copy(b"12345678");
        copy(b"more");
        let file = folder.path().join("2026-11-17/a.b.00000000000000000000000007.2.log");
        until(|| std::fs::read_to_string(&file).unwrap_or_default().ends_with("allows]\n"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.starts_with("1234567812\n[belfry: the rest is not in this file") && !text.contains("more"),
            "{text}"
        );
    }

    #[test]
    fn a_place_that_cannot_be_written_holds_up_nobody_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(folder.path(), 1 << 30);
        // A file where the day's folder should be.
        let day = folder.path().join("2026-11-17");
        std::fs::write(&day, "in the way").unwrap();
        let mut copy = logs.begin("a", "b", key(), NOON.parse().unwrap());
        for _ in 0..10 * PIECES_IN_FLIGHT_MAX {
            copy(&[b'x'; 1024]);
        }
        drop(copy);
        std::fs::remove_file(&day).unwrap();
        // The first ones after it may have no room behind what could not be written: those say so.
        let attempts = std::cell::Cell::new(2);
        until(|| {
            attempts.set(attempts.get() + 1);
            let next = Key { attempt: attempts.get(), ..key() };
            logs.begin("a", "b", next, NOON.parse().unwrap())(b"again");
            let files = std::fs::read_dir(&day).into_iter().flatten().flatten();
            files.into_iter().any(|file| std::fs::read(file.path()).unwrap() == b"again")
        });
    }

    fn some_file() -> Arc<LogFile> {
        Arc::new(LogFile { path: "x".into(), open: std::sync::Mutex::new(None) })
    }

    /// As long as there is room for what is not the last word on a file.
    fn fill(to_writer: &ToWriter) {
        while to_writer.offer(Message::Prune { today: Date::MIN, keep: Duration::ZERO }) {}
    }

    /// As the writer does.
    fn make_room(to_writer: &ToWriter, messages: &Receiver<Message>) {
        drop(messages.try_recv().unwrap());
        to_writer.waiting.messages.fetch_sub(1, Ordering::Relaxed);
    }

    /// All pieces on their way: what is there, what is missing in front of it, and whether the file ends with it.
    fn pieces(messages: &Receiver<Message>) -> Vec<(String, u64, bool)> {
        let pieces = messages.try_iter().filter_map(|message| match message {
            Message::Piece(_, it) => Some((String::from_utf8(it.bytes).unwrap(), it.lost_bytes, it.is_cut)),
            Message::Begun(_) | Message::Prune { .. } => None,
        });
        pieces.collect()
    }

    #[test]
    fn what_had_no_room_on_its_way_is_marked() {
        let (to_writer, messages) = queue();
        let mut run = HandOver::begin(to_writer.clone(), some_file(), Size::from_bytes(100));
        fill(&to_writer);
        run.take(b"lost");
        make_room(&to_writer, &messages);
        run.take(b"three");
        assert_eq!(pieces(&messages), [("three".into(), 4, false)]);
    }

    #[test]
    fn that_a_file_has_all_that_it_may_is_said_when_there_is_room_to_say_it() {
        let (to_writer, messages) = queue();
        let mut run = HandOver::begin(to_writer.clone(), some_file(), Size::from_bytes(4));
        run.take(b"four");
        fill(&to_writer);
        run.take(b"beyond it");
        make_room(&to_writer, &messages);
        run.take(b"more");
        assert_eq!(pieces(&messages), [("four".into(), 0, false), (String::new(), 0, true)]);
        run.take(b"yet more");
        drop(run);
        assert_eq!(pieces(&messages), [], "once");
    }

    #[test]
    fn what_could_not_be_said_of_an_attempt_while_it_ran_is_said_at_its_end() {
        let (to_writer, messages) = queue();
        let begin = || HandOver::begin(to_writer.clone(), some_file(), Size::from_bytes(4));
        let (mut cut, mut holed) = (begin(), begin());
        fill(&to_writer);
        let silent = begin();
        cut.take(b"all of it is lost");
        holed.take(b"two");
        drop((cut, holed, silent));
        let nothing = String::new();
        assert_eq!(pieces(&messages), [(nothing.clone(), 4, true), (nothing.clone(), 3, false), (nothing, 0, false)]);
    }

    #[test]
    fn attempts_that_not_even_a_mark_has_room_for_are_counted() {
        let (to_writer, _messages) = queue();
        fill(&to_writer);
        for _ in PIECES_IN_FLIGHT_MAX..MESSAGES_IN_FLIGHT_MAX + 2 {
            drop(HandOver::begin(to_writer.clone(), some_file(), Size::from_bytes(4)));
        }
        assert_eq!(to_writer.waiting.unmarked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn old_days_go_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["2026-11-01", "2026-11-03", "2026-11-17", "2026-1-1", "old", "2026-11-02.d"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("2026-11-01/x.log"), "x").unwrap();
        std::fs::write(folder.path().join("2026-10-01"), "a file").unwrap();
        prune(folder.path(), "2026-11-17".parse().unwrap(), Duration::from_secs(14 * 86_400)).unwrap();
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["2026-1-1", "2026-10-01", "2026-11-02.d", "2026-11-03", "2026-11-17", "old"]);
    }

    #[test]
    fn names_lead_nowhere_else() {
        assert_eq!(safe("../../etc/passwd"), "_._.._etc_passwd");
        assert_eq!(safe("db-backup.2_x"), "db-backup.2_x");
        assert_eq!(safe(&"a".repeat(200)).len(), NAME_CHARS_MAX);
    }
}
