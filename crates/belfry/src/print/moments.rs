//! Moments and durations in few characters, in the zone of whoever reads them.

use std::time::Duration;

use belfry_core::Timestamp;
use belfry_core::schedule::time_zone;
use jiff::tz::TimeZone;

/// The zone of this terminal, from the bundled database so that offsets agree with the schedules'.
#[derive(Clone, Debug)]
pub struct Zone {
    pub name: String,
    pub tz: TimeZone,
}

impl Zone {
    pub fn named(name: &str) -> Result<Self, belfry_core::schedule::ScheduleError> {
        let tz = time_zone(name)?;
        Ok(Self { name: tz.iana_name().unwrap_or(name).to_owned(), tz })
    }

    /// `TZ`, else what the machine is set to, else UTC; in the order in which a server looks for its default.
    pub fn local() -> Self {
        let from_env = std::env::var("TZ").ok().map(|name| name.trim_start_matches(':').to_owned());
        let from_link = std::fs::read_link("/etc/localtime").ok().and_then(|target| {
            let target = target.to_str()?;
            target.split_once("zoneinfo/").map(|(_, name)| name.to_owned())
        });
        let from_file = std::fs::read_to_string("/etc/timezone").ok().map(|text| text.trim().to_owned());
        let mut known =
            [from_env, from_link, from_file].into_iter().flatten().filter_map(|name| Self::named(&name).ok());
        known.next().unwrap_or(Self { name: "UTC".to_owned(), tz: TimeZone::UTC })
    }

    /// As short as it can be told: the time for today, else the date too, else the year too.
    pub fn show(&self, at: Timestamp, now: Timestamp) -> String {
        let (at, now) = (at.to_zoned(self.tz.clone()), now.to_zoned(self.tz.clone()));
        if at.date() == now.date() {
            at.strftime("%H:%M:%S").to_string()
        } else if at.year() == now.year() {
            at.strftime("%b %d %H:%M:%S").to_string()
        } else {
            at.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
    }

    /// RFC 3339 with this zone's offset.
    pub fn rfc3339(&self, at: Timestamp) -> String {
        at.to_zoned(self.tz.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

/// `in 3m`, `2h ago`, `now`.
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    let ms = at.as_millisecond() - now.as_millisecond();
    let distance = Duration::from_millis(ms.unsigned_abs());
    if distance < Duration::from_secs(1) {
        return "now".to_owned();
    }
    let distance = short_duration(Duration::from_secs(distance.as_secs()));
    if ms > 0 { format!("in {distance}") } else { format!("{distance} ago") }
}

/// At most two units, the second only where it tells something.
pub fn short_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 => {
            let tenths = duration.subsec_millis() / 100;
            if tenths == 0 { format!("{seconds}s") } else { format!("{seconds}.{tenths}s") }
        }
        10..60 => format!("{seconds}s"),
        60..600 => two(seconds / 60, "m", seconds % 60, "s"),
        600..3600 => format!("{}m", seconds / 60),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        86_400..864_000 => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn distances_are_short() {
        let now = at("2026-07-01T12:00:00Z");
        for (moment, expected) in [
            ("2026-07-01T12:00:00.4Z", "now"),
            ("2026-07-01T12:03:00Z", "in 3m"),
            ("2026-07-01T12:00:42.9Z", "in 42s"),
            ("2026-07-01T09:30:00Z", "2h30m ago"),
            ("2026-07-02T12:00:00Z", "in 1d"),
            ("2026-01-01T12:00:00Z", "181d ago"),
        ] {
            assert_eq!(relative(at(moment), now), expected, "{moment}");
        }
    }

    #[test]
    fn durations_keep_what_matters() {
        for (ms, expected) in
            [(0, "0ms"), (250, "250ms"), (1500, "1.5s"), (61_000, "1m1s"), (660_000, "11m"), (7_260_000, "2h1m")]
        {
            assert_eq!(short_duration(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn a_moment_is_told_in_the_zone_of_the_reader() {
        let zone = Zone::named("Asia/Shanghai").unwrap();
        let now = at("2026-07-01T12:00:00Z");
        assert_eq!(zone.show(at("2026-07-01T13:00:00Z"), now), "21:00:00");
        assert_eq!(zone.show(at("2026-07-01T20:00:00Z"), now), "Jul 02 04:00:00");
        assert_eq!(zone.show(at("2027-07-01T20:00:00Z"), now), "2027-07-02 04:00:00");
        assert_eq!(zone.rfc3339(now), "2026-07-01T20:00:00+08:00");
    }
}
