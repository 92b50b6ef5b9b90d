//! Bugs planted on purpose, so that tests can show that their checkers catch them. A build without debug assertions (every
//! release) has none: `is` is the constant false there.

/// Whether the bug of this name was asked for with `BELFRY_PLANTED_BUG`.
#[cfg(debug_assertions)]
pub fn is(name: &str) -> bool {
    static ASKED_FOR: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ASKED_FOR.get_or_init(|| std::env::var("BELFRY_PLANTED_BUG").ok()).as_deref() == Some(name)
}

#[cfg(not(debug_assertions))]
pub const fn is(_name: &str) -> bool {
    false
}
