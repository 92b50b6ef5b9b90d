//! A wall clock that can be stepped for one process, by the library of Debian's `faketime`. Clocks that count from the boot stay as
//! they are.

use std::path::PathBuf;

const LIBRARY: &str = "libfaketimeMT.so.1";
const LIBRARY_FOLDERS: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];

pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// Not stepped yet.
    pub fn new(file: PathBuf) -> Self {
        let clock = Self { file };
        clock.step(0);
        clock
    }

    pub fn step(&self, seconds: i64) {
        // In place of the old file: a reader finds one or the other, never half of one.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).expect("the file of the clock");
        std::fs::rename(new, &self.file).expect("the file of the clock");
    }

    /// For the process whose clock it is.
    pub fn env(&self) -> Vec<(String, String)> {
        let file = ("FAKETIME_TIMESTAMP_FILE".to_owned(), self.file.display().to_string());
        let cache = ("FAKETIME_CACHE_DURATION".to_owned(), "1".to_owned());
        Self::library_env().into_iter().chain([file, cache]).collect()
    }

    /// Without saying what the time is.
    pub(crate) fn library_env() -> Vec<(String, String)> {
        let library =
            LIBRARY_FOLDERS.map(|folder| PathBuf::from(folder).join(LIBRARY)).into_iter().find(|it| it.is_file());
        let library = library.unwrap_or_else(|| panic!("{LIBRARY} is missing; install the Debian package faketime"));
        [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}
