//! What a server needs from the store to fire and to let agents and people in, on its own disk: for a start, or a takeover, while the
//! store is away. Readable by its owner only; replaced whole, within seconds of a change. The store's truth follows by the number of
//! its last change as soon as it answers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belfry_core::{NodeId, Timestamp};
use belfry_store::{Callers, NodeRecord, RawJob, Script, SecretHash, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::context::Context;
use crate::scripts;

/// All but the jobs. The first line of the file; a line for each job follows, and a last one that says that it is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Of the program: another one may expect other tables.
    version: String,
    pub taken_at: Timestamp,
    pub settings: BTreeMap<String, String>,
    pub nodes: Vec<NodeRecord>,
    credentials: Vec<(NodeId, String)>,
    pub callers: Callers,
    #[serde(default)]
    pub scripts: Vec<Script>,
}

#[derive(Serialize, Deserialize)]
struct LastLine {
    jobs: u64,
    seq: u64,
}

const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Of its time at most a twentieth goes into writing, however many jobs there are.
const REST_PER_WRITE: u32 = 20;

impl Snapshot {
    /// None: there is none that this version can use.
    pub fn read(path: &Path) -> io::Result<Option<Snapshot>> {
        Ok(open(path)?.map(|(snapshot, _)| snapshot))
    }

    pub fn credentials(&self) -> Vec<(NodeId, SecretHash)> {
        self.credentials.iter().map(|(node, hash)| (*node, SecretHash::from_hex(hash))).collect()
    }

    async fn take(store: &Store, now: Timestamp) -> Result<Snapshot, StoreError> {
        let credentials = store.list_credentials().await?;
        Ok(Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at: now,
            settings: store.list_settings().await?,
            nodes: store.list_nodes().await?,
            credentials: credentials.into_iter().map(|(node, hash)| (node, hash.as_str().to_owned())).collect(),
            callers: store.callers(now).await?,
            scripts: Vec::new(),
        })
    }

    fn is_as(&self, other: &Snapshot) -> bool {
        *self == Snapshot { taken_at: self.taken_at, ..other.clone() }
    }
}

fn open(path: &Path) -> io::Result<Option<(Snapshot, BufReader<File>)>> {
    let file = match File::open(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut lines = BufReader::new(file);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let snapshot: Snapshot = serde_json::from_str(&first)?;
    Ok((snapshot.version == env!("CARGO_PKG_VERSION")).then_some((snapshot, lines)))
}

/// The jobs, and the number from which to follow changes.
pub fn read_jobs(path: &Path, mut each: impl FnMut(RawJob)) -> io::Result<Option<u64>> {
    let Some((_, lines)) = open(path)? else { return Ok(None) };
    let mut count = 0;
    for line in lines.lines() {
        let line = line?;
        if let Ok(job) = serde_json::from_str::<RawJob>(&line) {
            count += 1;
            each(job);
            continue;
        }
        let last: LastLine = serde_json::from_str(&line)?;
        if last.jobs == count {
            return Ok(Some(last.seq));
        }
    }
    Err(io::Error::other("it ends too early"))
}

/// Keeps the file as the store is. Never ends.
pub async fn keep(context: Arc<Context>, path: PathBuf) {
    let mut written: Option<(Snapshot, u64)> = None;
    let mut rest = Duration::ZERO;
    loop {
        tokio::time::sleep(rest.max(LOOK_EVERY)).await;
        let from = Instant::now();
        match refresh(&context, &path, &mut written).await {
            Ok(()) => {}
            Err(NotKept::Store(cause)) => context.store_health.away(context.now(), crate::chain(&cause)),
            Err(NotKept::Disk(cause)) => {
                tracing::warn!(%cause, path = %path.display(), "the snapshot for times without the store cannot be written");
            }
        }
        rest = from.elapsed() * REST_PER_WRITE;
    }
}

enum NotKept {
    Store(StoreError),
    Disk(io::Error),
}

impl From<StoreError> for NotKept {
    fn from(cause: StoreError) -> Self {
        NotKept::Store(cause)
    }
}

impl From<io::Error> for NotKept {
    fn from(cause: io::Error) -> Self {
        NotKept::Disk(cause)
    }
}

async fn refresh(context: &Context, path: &Path, written: &mut Option<(Snapshot, u64)>) -> Result<(), NotKept> {
    scripts::bring(context, &context.store).await;
    let snapshot = Snapshot { scripts: context.scripts.all(), ..Snapshot::take(&context.store, context.now()).await? };
    if let Some((known, seq)) = written
        && known.is_as(&snapshot)
        && context.store.job_changes_since(*seq).await?.0.is_empty()
    {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    let mut file = BufWriter::new(file);
    let mut outcome = line(&mut file, &snapshot);
    let mut jobs = 0;
    let seq = context
        .store
        .load_raw_jobs(|page| {
            for job in page {
                jobs += 1;
                if outcome.is_ok() {
                    outcome = line(&mut file, &job);
                }
            }
        })
        .await?;
    outcome?;
    line(&mut file, &LastLine { jobs, seq })?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    let path = path.to_owned();
    let done = tokio::task::spawn_blocking(move || file.sync_data().and_then(|()| fs::rename(fresh, path))).await;
    done.map_err(io::Error::other)??;
    *written = Some((snapshot, seq));
    Ok(())
}

fn line(file: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")
}
