//! The console's files become part of this crate: it is built again when one of them is changed, added or removed.

use std::path::Path;

fn main() {
    // A path that is not there would have the crate built each time.
    let watched = ["../../console/dist", "../../console", "build.rs"];
    let watched = watched.into_iter().find(|path| Path::new(path).exists());
    println!("cargo::rerun-if-changed={}", watched.unwrap_or("build.rs"));
}
