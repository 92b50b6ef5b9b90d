//! `console`: builds the pages that the server carries with it, from `console/` with npm, when their sources have changed; and runs the
//! checks that they have themselves. Without that folder there is nothing to do, and the server says so at `/`.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::tools::is_on_path;
use crate::workspace::{root, target_folder};

/// Set for tests that are to find the console in the server.
pub const EXPECTED: &str = "BELFRY_CONSOLE_EXPECTED";
/// Where the console's own tests find the server.
const PROGRAM: &str = "BELFRY_BIN";
/// Not sources: what npm installs, what is built, and what tools keep for themselves.
const LEFT_OUT: [&str; 6] = ["node_modules", "dist", ".svelte-kit", ".vite", "test-results", "screenshots"];
/// Outside of `console/`, and read by its build: the types of the API are made from it.
const API_DOCUMENT: &str = "docs/openapi.json";
/// What is smaller is sent as it is.
const PACKED_FROM_BYTES: u64 = 1024;
const PACKED: [&str; 5] = ["js", "css", "html", "svg", "json"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Console {
    Built,
    /// There is no `console/package.json`.
    NotThere,
}

/// `dist` is made from the sources as they are, afterwards.
pub fn build() -> anyhow::Result<Console> {
    let folder = folder();
    if !folder.join("package.json").is_file() {
        eprintln!("xtask: there is no console/package.json; the server is built without its console");
        return Ok(Console::NotThere);
    }
    let sources = digest(&folder)?;
    install(&folder)?;
    let noted = target_folder()?.join("console-built-from");
    let is_same = std::fs::read_to_string(&noted).is_ok_and(|noted| noted == sources);
    if is_same && folder.join("dist/index.html").is_file() {
        eprintln!("xtask: the console is built from these sources already");
        return Ok(Console::Built);
    }
    run(npm(&["run", "build"]))?;
    pack(&folder.join("dist"))?;
    std::fs::create_dir_all(target_folder()?)?;
    std::fs::write(&noted, sources).context("note what the console was built from")?;
    Ok(Console::Built)
}

/// Types and translations, units, and every page in a browser on the server that was built. What they need was installed by the build.
pub fn checks() -> Vec<(&'static str, Command)> {
    let check = |name, args: &[&str]| {
        let mut command = npm(args);
        if let Ok(target) = target_folder() {
            command.env(PROGRAM, target.join("debug/belfry"));
        }
        (name, command)
    };
    vec![
        check("console: types", &["run", "check"]),
        check("console: units", &["test"]),
        check("console: size", &["run", "size"]),
        check("console: browser", &["run", "browser"]),
    ]
}

fn folder() -> PathBuf {
    root().join("console")
}

/// Exactly what the lock file names, and nothing of it is run while it is installed.
fn install(folder: &Path) -> anyhow::Result<()> {
    if !is_on_path("npm") {
        bail!("npm is missing; the console needs Node.js 20 or later with npm");
    }
    let written_at = |file: &str| folder.join(file).metadata().and_then(|file| file.modified()).ok();
    // npm notes there what it has installed.
    let installed = written_at("node_modules/.package-lock.json");
    if installed.is_some() && installed >= written_at("package-lock.json") {
        return Ok(());
    }
    run(npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))
}

fn npm(args: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(args).current_dir(folder()).stdin(Stdio::null());
    command
}

fn run(mut command: Command) -> anyhow::Result<()> {
    if !command.status().context("start npm")?.success() {
        bail!("npm failed in console/; its messages are above");
    }
    Ok(())
}

/// Beside each larger file the same, packed: the server sends it to those who take it.
fn pack(dist: &Path) -> anyhow::Result<()> {
    for file in files(dist)? {
        let is_text = file.extension().is_some_and(|kind| PACKED.iter().any(|packed| kind == *packed));
        if is_text && file.metadata()?.len() >= PACKED_FROM_BYTES {
            // Without name and time, so that the same file is packed to the same bytes.
            let status = Command::new("gzip").args(["-9", "-n", "-k", "-f"]).arg(&file).stdin(Stdio::null()).status();
            if !status.context("start gzip")?.success() {
                bail!("gzip failed on {}", file.display());
            }
        }
    }
    Ok(())
}

/// Of all that the build reads.
fn digest(folder: &Path) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    for file in files(folder)?.into_iter().chain([root().join(API_DOCUMENT)]) {
        hasher.write(file.as_os_str().as_encoded_bytes());
        let content = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        hasher.write_usize(content.len());
        hasher.write(&content);
    }
    Ok(format!("{:016x}\n", hasher.finish()))
}

/// All files below, in order.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let entry = entry?;
            if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
