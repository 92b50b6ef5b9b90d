//! Which files a path on the command line stands for.

use std::fs;
use std::path::{Path, PathBuf};

use super::{DocumentError, format_of};

/// Deeper than anybody sorts jobs; it ends a loop of symbolic links.
const FOLDER_DEPTH_MAX: usize = 16;

/// A file stands for itself; a folder for every document file in it and below, sorted. Hidden entries are left out.
pub(super) fn files(given: &Path) -> Result<Vec<PathBuf>, DocumentError> {
    if given == Path::new("-") {
        return Ok(vec![given.to_owned()]);
    }
    let unreadable = |cause| DocumentError::Unreadable { path: given.to_owned(), cause };
    if !fs::metadata(given).map_err(unreadable)?.is_dir() {
        return Ok(vec![given.to_owned()]);
    }
    let mut found = Vec::new();
    collect(given, 0, &mut found)?;
    if found.is_empty() {
        return Err(unreadable(std::io::Error::other("there is no .yaml, .yml, .toml or .json file in it")));
    }
    Ok(found)
}

fn collect(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), DocumentError> {
    let unreadable = |cause| DocumentError::Unreadable { path: dir.to_owned(), cause };
    if depth > FOLDER_DEPTH_MAX {
        return Err(unreadable(std::io::Error::other(format!("folders are nested deeper than {FOLDER_DEPTH_MAX}"))));
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?);
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let metadata = fs::metadata(&path).map_err(|cause| DocumentError::Unreadable { path: path.clone(), cause })?;
        if metadata.is_dir() {
            collect(&path, depth + 1, found)?;
        } else if format_of(&path).is_some() {
            found.push(path);
        }
    }
    Ok(())
}
