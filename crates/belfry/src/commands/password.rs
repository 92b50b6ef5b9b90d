//! Passwords from the terminal without echo, or from standard input. They are never arguments: other users can see those.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::exit::UsageError;

/// One line, asked for on the terminal or read from standard input.
pub fn ask(prompt: &str, from_stdin: bool) -> anyhow::Result<String> {
    if from_stdin {
        return line_of(&mut io::stdin().lock());
    }
    let mut terminal = terminal()?;
    write!(terminal, "{prompt}: ")?;
    let hidden = Hidden::on(&terminal)?;
    let answer = line_of(&mut BufReader::new(&terminal));
    drop(hidden);
    writeln!(terminal)?;
    answer
}

/// A new password, twice when it is typed.
pub fn ask_new(from_stdin: bool) -> anyhow::Result<String> {
    let password = ask("New password", from_stdin)?;
    if !from_stdin && ask("The same again", false)? != password {
        return Err(UsageError("the two passwords differ; nothing was changed".to_owned()).into());
    }
    Ok(password)
}

/// A name, with echo.
pub fn ask_name(prompt: &str) -> anyhow::Result<String> {
    let mut terminal = terminal()?;
    write!(terminal, "{prompt}: ")?;
    line_of(&mut BufReader::new(&terminal))
}

fn terminal() -> anyhow::Result<File> {
    let opened = File::options().read(true).write(true).open("/dev/tty").ok().filter(IsTerminal::is_terminal);
    opened
        .ok_or_else(|| UsageError("there is no terminal to ask on; use --user and --password-stdin".to_owned()).into())
}

fn line_of(source: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    source.read_line(&mut line)?;
    let line = line.trim_end_matches(['\n', '\r']);
    if line.is_empty() {
        return Err(UsageError("nothing was typed".to_owned()).into());
    }
    Ok(line.to_owned())
}

/// Echo is off until this is dropped.
struct Hidden<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn on(terminal: &'a File) -> anyhow::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(terminal, SetArg::TCSAFLUSH, &silent)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, SetArg::TCSANOW, &self.before);
    }
}
