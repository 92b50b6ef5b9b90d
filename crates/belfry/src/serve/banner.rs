//! What `belfry up` says when it is ready: where it is, how to get in, how jobs run, and what to try next.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;

pub struct Banner<'a> {
    pub url: &'a str,
    pub address: SocketAddr,
    pub data: &'a Path,
    /// Only when it was made just now.
    pub new_password: Option<&'a str>,
    pub timezone: &'a str,
    pub runs_as: &'a str,
    pub default_data: bool,
}

impl Banner<'_> {
    /// To stderr: it is talk, not data. The password itself is shown on a terminal only.
    pub fn print(&self) {
        let mut err = std::io::stderr();
        let _ = err.write_all(self.text(err.is_terminal()).as_bytes());
    }

    fn text(&self, terminal: bool) -> String {
        let password_file = self.data.join("admin-password");
        let password = match self.new_password {
            Some(password) if terminal => format!("{password}   (also in {})", password_file.display()),
            _ => format!("in {}", password_file.display()),
        };
        let afar = if self.address.ip().is_loopback() {
            format!("ssh -L {}:{} THIS-HOST", self.address.port(), self.address)
        } else {
            format!(
                "belfry login --url https://THIS-HOST:{} --ca ca.pem, with the file of that name from the data folder",
                self.address.port()
            )
        };
        let data = if self.default_data { String::new() } else { format!(" --data {}", self.data.display()) };
        format!(
            "\nBelfry {version} is ready.\n\
             \x20 address    {url}\n\
             \x20 user       admin\n\
             \x20 password   {password}\n\
             \x20 data       {folder}\n\
             \x20 time zone  {zone} (for jobs that name none)\n\
             \x20 jobs run   as {runs_as}\n\
             \x20 from afar  {afar}\n\n\
             Try next:\n\
             \x20 belfry{data} job add hello --every 10s -- 'echo hello from $BELFRY_JOB'\n\
             \x20 belfry{data} run logs -f hello\n\n",
            version = env!("CARGO_PKG_VERSION"),
            url = self.url,
            folder = self.data.display(),
            zone = self.timezone,
            runs_as = self.runs_as,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_shown_on_a_terminal_only() {
        let banner = Banner {
            url: "http://127.0.0.1:8787",
            address: "127.0.0.1:8787".parse().unwrap(),
            data: Path::new("/tmp/b"),
            new_password: Some("s3cret"),
            timezone: "UTC",
            runs_as: "nobody",
            default_data: false,
        };
        assert!(banner.text(true).contains("s3cret"));
        assert!(!banner.text(false).contains("s3cret"));
        assert!(banner.text(false).contains("in /tmp/b/admin-password"));
        assert!(banner.text(false).contains("ssh -L 8787:127.0.0.1:8787"));
    }
}
