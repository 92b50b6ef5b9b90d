//! The zygote as a program of its own, for this crate's tests.

fn main() {
    belfry_exec::zygote_main()
}
