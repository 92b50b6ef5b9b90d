//! Job documents in files: YAML, TOML or JSON, one or many, in folders. Every refusal names the file, the document and the field.
//! It reads and checks; nothing is sent anywhere.

mod formats;
mod walk;

pub use formats::{write_document, write_documents};

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use belfry_core::{JobDocument, Refusal, Timestamp};
use serde_json::Value;

use crate::cli::Format;

/// More than the server takes in one request.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("{}: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error("{}: it is larger than {} MiB", path.display(), FILE_BYTES_MAX >> 20)]
    TooLarge { path: PathBuf },
    #[error("{}: the name must end in .yaml, .yml, .toml or .json", path.display())]
    UnknownFormat { path: PathBuf },
    #[error("{place}: {message}")]
    Syntax { place: Place, message: String },
    #[error("{place}: {refusal}")]
    Refused { place: Place, refusal: Refusal },
    #[error("{second}: name: {name} is already in {first}; each job is given once")]
    Twice { name: String, first: Place, second: Place },
    #[error("{}: there is no job in it", path.display())]
    Empty { path: PathBuf },
}

/// Where a document stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    /// Counted from 1.
    pub document: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.path.display(), self.document)
    }
}

/// A document that can be read; the server has the last word on it.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub place: Place,
    /// As written, so that the server applies its own defaults.
    pub value: Value,
}

/// All documents of files and folders, in the order given, folders sorted by name; the first mistake refuses them all.
pub fn load(paths: &[PathBuf], now: Timestamp) -> Result<Vec<Loaded>, DocumentError> {
    let mut loaded = Vec::new();
    let mut places: HashMap<String, Place> = HashMap::new();
    for given in paths {
        for path in walk::files(given)? {
            let values = read(&path)?;
            if values.is_empty() {
                return Err(DocumentError::Empty { path });
            }
            for (index, value) in values.into_iter().enumerate() {
                let place = Place { path: path.clone(), document: index + 1 };
                let refused = |refusal| DocumentError::Refused { place: place.clone(), refusal };
                let document = JobDocument::from_value(value.clone()).map_err(refused)?;
                document.validate(now).map_err(refused)?;
                if let Some(first) = places.insert(document.full_name(), place.clone()) {
                    return Err(DocumentError::Twice { name: document.full_name(), first, second: place });
                }
                loaded.push(Loaded { place, value });
            }
        }
    }
    Ok(loaded)
}

fn read(path: &Path) -> Result<Vec<Value>, DocumentError> {
    let stdin = path == Path::new("-");
    let format = if stdin {
        Format::Yaml
    } else {
        format_of(path).ok_or_else(|| DocumentError::UnknownFormat { path: path.into() })?
    };
    let unreadable = |cause| DocumentError::Unreadable { path: path.into(), cause };
    let mut text = String::new();
    let source: Box<dyn Read> =
        if stdin { Box::new(std::io::stdin()) } else { Box::new(fs::File::open(path).map_err(unreadable)?) };
    let bytes = source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(DocumentError::TooLarge { path: path.into() });
    }
    formats::parse(&text, format).map_err(|(index, message)| DocumentError::Syntax {
        place: Place { path: path.into(), document: index + 1 },
        message,
    })
}

pub(crate) fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "yaml" | "yml" => Some(Format::Yaml),
        "toml" => Some(Format::Toml),
        "json" => Some(Format::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn load_all(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let dir = folder(files);
        let now = "2026-07-01T00:00:00Z".parse().unwrap();
        let loaded = load(&[dir.path().to_owned()], now)
            .map_err(|e| e.to_string().replace(&format!("{}/", dir.path().display()), ""))?;
        Ok(loaded.iter().map(|job| job.value["name"].as_str().unwrap().to_owned()).collect())
    }

    const ONE: &str = "name: one\naction: {shell: {command: 'true'}}\n";

    #[test]
    fn folders_are_read_with_their_folders_in_order() {
        let toml = "[[job]]\nname = \"c\"\naction.shell.command = \"true\"\n[[job]]\nname = \"d\"\naction.shell.command = \"true\"\n";
        let json = r#"[{"name": "e", "action": {"exec": {"argv": ["true"]}}}]"#;
        let files =
            [("b/jobs.toml", toml), ("a.yaml", ONE), ("c.json", json), (".hidden.yaml", ":"), ("notes.txt", "no job")];
        assert_eq!(load_all(&files).unwrap(), ["one", "c", "d", "e"]);
    }

    #[test]
    fn a_mistake_names_file_document_and_field() {
        let two = format!("{ONE}---\nname: two\nretries: 3\naction: {{shell: {{command: 'true'}}}}\n");
        let message = load_all(&[("a.yaml", &two)]).unwrap_err();
        assert!(message.starts_with("a.yaml: document 2: retries: unknown field `retries`"), "{message}");
        let cron = "name: one\nschedule: '61 * * * *'\naction: {shell: {command: 'true'}}\n";
        let message = load_all(&[("a.yaml", cron)]).unwrap_err();
        assert!(message.starts_with("a.yaml: document 1: schedule[0]: ") && message.contains("61"), "{message}");
        let message = load_all(&[("a.yaml", "name: one\n")]).unwrap_err();
        assert!(message.starts_with("a.yaml: document 1: action: missing field `action`"), "{message}");
    }

    #[test]
    fn text_that_cannot_be_read_names_file_and_place() {
        let message = load_all(&[("a.json", "{\"name\": \n 1,}")]).unwrap_err();
        assert!(message.starts_with("a.json: document 1: ") && message.contains("line 2"), "{message}");
        let message = load_all(&[("a.toml", "name = one")]).unwrap_err();
        assert!(message.starts_with("a.toml: document 1: "), "{message}");
        let message = load_all(&[("a.yaml", &format!("{ONE}---\na: [1\n"))]).unwrap_err();
        assert!(message.starts_with("a.yaml: document 2: "), "{message}");
    }

    #[test]
    fn a_job_is_given_once() {
        let message = load_all(&[("a.yaml", ONE), ("b.yaml", ONE)]).unwrap_err();
        assert_eq!(
            message,
            "b.yaml: document 1: name: default/one is already in a.yaml: document 1; each job is given once"
        );
    }

    #[test]
    fn a_file_without_a_job_is_a_mistake() {
        assert_eq!(load_all(&[("a.yaml", "# nothing\n---\n")]).unwrap_err(), "a.yaml: there is no job in it");
        assert!(load_all(&[]).unwrap_err().ends_with("no .yaml, .yml, .toml or .json file in it"));
        let missing = load(&[PathBuf::from("/nowhere/a.yaml")], Timestamp::UNIX_EPOCH).unwrap_err().to_string();
        assert!(missing.starts_with("/nowhere/a.yaml: "), "{missing}");
    }
}
