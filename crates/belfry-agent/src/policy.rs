//! The policy file of this machine: read at the start, and again whenever it has changed. While it cannot be read, or others could
//! have written it, nothing is started.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use belfry_core::policy::Policy;
use nix::unistd::geteuid;

pub(crate) struct PolicyFile {
    path: Option<PathBuf>,
    /// What flags said; the file beats them.
    flags: Policy,
    known: Mutex<Known>,
}

struct Known {
    stamp: Option<Stamp>,
    policy: Result<Arc<Policy>, String>,
}

/// A file that was changed has another one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    changed: (i64, i64),
    inode: u64,
    length: u64,
}

const FILE_BYTES_MAX: u64 = 1 << 20;

impl PolicyFile {
    /// Without a path, what the flags say holds for ever. An error is one of a file that is there for the first time.
    pub(crate) fn open(path: Option<PathBuf>, flags: Policy) -> Result<PolicyFile, String> {
        let known = Mutex::new(Known { stamp: None, policy: Ok(Arc::new(flags.clone())) });
        let file = PolicyFile { path, flags, known };
        file.current()?;
        Ok(file)
    }

    /// Costs one look at the file's dates.
    pub(crate) fn current(&self) -> Result<Arc<Policy>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.path else { return known.policy.clone() };
        let stamp = fs::metadata(path).ok().map(|facts| Stamp {
            changed: (facts.ctime(), facts.ctime_nsec()),
            inode: facts.ino(),
            length: facts.len(),
        });
        if stamp.is_none() || stamp != known.stamp {
            let before = known.policy.is_ok();
            known.policy = self.read(path).map(Arc::new);
            match &known.policy {
                Err(why) if before => tracing::error!("{why}; until it is corrected nothing is started here"),
                Err(_) => {}
                Ok(_) if known.stamp.is_some() => tracing::info!(path = %path.display(), "the policy was read again"),
                Ok(_) => {}
            }
            known.stamp = stamp;
        }
        known.policy.clone()
    }

    fn read(&self, path: &Path) -> Result<Policy, String> {
        let said = |why: String| format!("the policy file {}: {why}", path.display());
        let facts = fs::metadata(path).map_err(|cause| said(cause.to_string()))?;
        if facts.uid() != 0 && facts.uid() != geteuid().as_raw() {
            return Err(said(format!("it belongs to user {}; chown it to root", facts.uid())));
        }
        if facts.mode() & 0o022 != 0 {
            return Err(said("others than its owner may write it; chmod go-w".to_owned()));
        }
        if facts.len() > FILE_BYTES_MAX {
            return Err(said(format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let text = fs::read_to_string(path).map_err(|cause| said(cause.to_string()))?;
        let mut policy: Policy =
            toml::from_str(&text).map_err(|cause| said(cause.to_string().trim_end().to_owned()))?;
        policy.check().map_err(|refusal| said(refusal.to_string()))?;
        // As the places are found that jobs name: with all links followed.
        for paths in [&mut policy.directories, &mut policy.programs].into_iter().flatten() {
            for path in paths {
                *path = fs::canonicalize(&*path).unwrap_or_else(|_missing| path.clone());
            }
        }
        policy.allow_root = policy.allow_root.or(self.flags.allow_root);
        policy.default_user = policy.default_user.or_else(|| self.flags.default_user.clone());
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_example_is_a_policy_and_names_everything() {
        let text = include_str!("../../../docs/policy.example.toml");
        let policy: Policy = toml::from_str(text).unwrap();
        policy.check().unwrap();
        let value = serde_json::to_value(&policy).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 10, "{value}");
    }

    #[test]
    fn a_change_counts_at_once_and_a_mistake_stops_everything_until_it_is_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("kinds = [\"exec\"]\n");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let flags = Policy { allow_root: Some(true), default_user: Some("nobody".to_owned()), ..Policy::default() };
        let file = PolicyFile::open(Some(path.clone()), flags).unwrap();
        let policy = file.current().unwrap();
        assert_eq!(policy.kinds.as_deref(), Some(&["exec".to_owned()][..]));
        assert!(policy.allows_root(), "the flag holds where the file says nothing");

        write("allow_root = false\ndefault_user = \"backup\"\n");
        let policy = file.current().unwrap();
        assert!(!policy.allows_root(), "the file beats the flag");
        assert_eq!(policy.default_user.as_deref(), Some("backup"));

        for (text, words) in
            [("kind = []", "unknown field `kind`"), ("kinds = [\"bash\"]", "kinds: `bash` is not known")]
        {
            write(text);
            let why = file.current().unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        write("users = []\n");
        assert_eq!(file.current().unwrap().users, Some(vec![]));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
        assert!(file.current().unwrap_err().contains("chmod go-w"));
        fs::remove_file(&path).unwrap();
        assert!(file.current().is_err(), "nobody gets more rights by removing it");
    }
}
