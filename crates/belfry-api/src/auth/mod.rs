//! Who is calling, and the gate that every route stands behind: it finds the caller, then asks the access table.

mod caller;
mod gate;
mod lasting;
mod passwords;
mod secrets;
mod throttle;

pub use caller::{Caller, Credential, Permit, common_grants};
pub(crate) use gate::{Gate, gate};
pub(crate) use lasting::LastingPermit;
pub use passwords::{Passwords, check_new_password};
pub use secrets::{SESSION_COOKIE, new_join_secret, new_password, new_secret, new_token, random_bits};
pub use throttle::LoginThrottle;
