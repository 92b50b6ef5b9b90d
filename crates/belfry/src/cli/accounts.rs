//! Verbs and flags of logins, users, tokens and the audit trail.

use belfry_core::role::Role;
use belfry_core::units::Span;
use clap::{Args, Subcommand, ValueEnum};

use super::{KeyValue, When, moment};

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// Name to log in with [default: asked for]
    #[arg(long)]
    pub user: Option<String>,
    /// Read the password from standard input, for scripts
    #[arg(long)]
    pub password_stdin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleWord {
    Viewer,
    Operator,
    Editor,
    Admin,
}

impl From<RoleWord> for Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Viewer => Role::Viewer,
            RoleWord::Operator => Role::Operator,
            RoleWord::Editor => Role::Editor,
            RoleWord::Admin => Role::Admin,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// List users
    Ls,
    /// Create a user; the password is asked for
    #[command(group = clap::ArgGroup::new("may").required(true).multiple(true).args(["role", "grant"]))]
    Add {
        name: String,
        /// Role in every namespace
        #[arg(long)]
        role: Option<RoleWord>,
        /// Role in one namespace, as shop=editor; may be given several times
        #[arg(long, value_name = "NAMESPACE=ROLE")]
        grant: Vec<KeyValue>,
        /// Read the password from standard input, for scripts
        #[arg(long)]
        password_stdin: bool,
    },
    /// Change what a user may do; the roles given replace those held
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true).args(["role", "grant", "disable", "enable"]))]
    Set {
        name: String,
        /// Role in every namespace
        #[arg(long)]
        role: Option<RoleWord>,
        /// Role in one namespace, as shop=editor; may be given several times
        #[arg(long, value_name = "NAMESPACE=ROLE")]
        grant: Vec<KeyValue>,
        /// Let the user log in no longer
        #[arg(long, conflicts_with = "enable")]
        disable: bool,
        /// Let the user log in again
        #[arg(long)]
        enable: bool,
    },
    /// Remove a user and the user's tokens
    Rm {
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Change a password
    Passwd {
        /// Whose, for admins [default: your own]
        name: Option<String>,
        /// Read from standard input, for scripts: the new password; for your own first a line with the current one
        #[arg(long)]
        password_stdin: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// List tokens
    Ls,
    /// Create a token; it is shown once, on standard output
    Create {
        /// What it is for
        name: String,
        /// Role in every namespace [default: what you may do yourself]
        #[arg(long)]
        role: Option<RoleWord>,
        /// Role in one namespace, as shop=editor; may be given several times
        #[arg(long, value_name = "NAMESPACE=ROLE")]
        grant: Vec<KeyValue>,
        /// How long it is good for, as 90d [default: until it is removed]
        #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
        expires: Option<Span>,
        /// For admins: a token of this service instead of your own
        #[arg(long, value_name = "NAME")]
        service: Option<String>,
    },
    /// Remove a token; whoever uses it is out at once
    Rm {
        /// The token's id, see `belfry token ls`
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List changes, the newest first
    Ls(AuditLs),
}

#[derive(Debug, Args)]
pub struct AuditLs {
    /// Only changes by this user
    #[arg(long, value_name = "USER")]
    pub actor: Option<String>,
    /// Only this kind of change, as job.update
    #[arg(long, value_name = "NOUN.VERB")]
    pub action: Option<String>,
    /// At or after this moment, as 2026-07-01T04:00 or 2h (ago)
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub from: Option<When>,
    /// Before this moment
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub to: Option<When>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
