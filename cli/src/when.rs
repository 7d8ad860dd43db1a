//! Instants and durations as people write them on the command line.

use andreas_api::DurationText;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// A deadline: an instant, or a time from now.
#[derive(Clone, Debug, PartialEq)]
pub enum Deadline {
    /// At that instant.
    At(Timestamp),
    /// This long after the job's creation.
    After(DurationText),
}

/// Parses `2027-01-31T18:00:00Z` or `36h`.
///
/// # Errors
/// Where the text is neither.
pub fn deadline(text: &str) -> Result<Deadline, String> {
    if let Ok(after) = duration(text) {
        return Ok(Deadline::After(after));
    }
    let at = text.parse::<Timestamp>();
    at.map(Deadline::At).map_err(|_| {
        format!("{text:?} is neither an instant (2027-01-31T18:00:00Z) nor a duration (36h, 1h30m)")
    })
}

/// The start of a period that ends now.
#[derive(Clone, Debug, PartialEq)]
pub enum Since {
    /// From that instant.
    At(Timestamp),
    /// From the beginning of that day.
    Day(Date),
    /// From this many seconds ago.
    Ago(i64),
}

impl Since {
    /// As an instant; days begin as they do in `zone`.
    pub fn instant(&self, now: Timestamp, zone: &TimeZone) -> Timestamp {
        match self {
            Self::At(at) => *at,
            Self::Day(day) => {
                day.to_zoned(zone.clone()).map_or(Timestamp::UNIX_EPOCH, |begin| begin.timestamp())
            }
            Self::Ago(seconds) => Timestamp::from_second(now.as_second().saturating_sub(*seconds))
                .unwrap_or(Timestamp::UNIX_EPOCH),
        }
    }
}

/// Parses `2027-01-31T18:00:00Z`, `2027-01-31` (its beginning) or `720h` (30 days ago).
///
/// # Errors
/// Where the text is none of them.
pub fn since(text: &str) -> Result<Since, String> {
    if let Some(seconds) = DurationText(text.to_owned()).seconds().filter(|seconds| *seconds > 0) {
        return Ok(Since::Ago(seconds));
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Since::At(at));
    }
    text.parse::<Date>()
        .map(Since::Day)
        .map_err(|_| format!("{text:?} is neither a date (2027-01-31), an instant, nor a duration (720h)"))
}

/// Parses a duration longer than zero: `90s`, `1h30m`.
///
/// # Errors
/// Where the text is no such duration.
pub fn duration(text: &str) -> Result<DurationText, String> {
    let duration = DurationText(text.to_owned());
    match duration.seconds() {
        Some(seconds) if seconds > 0 => Ok(duration),
        _ => Err(format!("{text:?} is not a duration such as 90s or 1h30m (units h, m, s)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_an_instant_or_a_duration() {
        assert_eq!(deadline("36h"), Ok(Deadline::After(DurationText("36h".into()))));
        assert!(matches!(deadline("2027-01-31T18:00:00Z"), Ok(Deadline::At(_))));
        for wrong in ["", "0s", "tomorrow", "-1h", "9999999999h", "2d", "1h1h1h1h1h"] {
            assert!(deadline(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_period_begins_at_a_date_or_some_time_ago() {
        let now: Timestamp = "2027-02-01T00:00:00Z".parse().unwrap();
        for (text, hours, instant) in [
            ("24h", -8, "2027-01-31T00:00:00Z"),
            ("2027-01-15", 0, "2027-01-15T00:00:00Z"),
            ("2027-01-15", -8, "2027-01-15T08:00:00Z"),
            ("2027-01-15", 9, "2027-01-14T15:00:00Z"),
            ("2027-01-15T12:00:00+01:00", 9, "2027-01-15T11:00:00Z"),
        ] {
            let zone = TimeZone::fixed(jiff::tz::offset(hours));
            assert_eq!(since(text).unwrap().instant(now, &zone), instant.parse().unwrap(), "{text} {hours}");
        }
        for wrong in ["", "0h", "30d", "January", "2027-13-01"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
        assert!(duration("0s").is_err() && duration("15m").is_ok());
    }
}
