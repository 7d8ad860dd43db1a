//! What daily windows of a policy say of an instant. The operator reads them the same way: the first window that covers the
//! clock's time counts, else the base; the end is exclusive; a window whose end is not after its start passes midnight.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// A value between two times of day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window<T> {
    from: Time,
    to: Time,
    value: T,
}

impl<T: Copy + PartialEq> Window<T> {
    /// From `HH:MM` to `HH:MM`; none where one of them is no time of day.
    pub fn new(from: &str, to: &str, value: T) -> Option<Self> {
        Some(Self { from: time_of_day(from)?, to: time_of_day(to)?, value })
    }

    /// Whether it covers a time of day.
    pub fn covers(&self, at: Time) -> bool {
        if self.from < self.to { (self.from..self.to).contains(&at) } else { at >= self.from || at < self.to }
    }
}

fn time_of_day(text: &str) -> Option<Time> {
    let (hours, minutes) = text.split_once(':')?;
    Time::new(hours.parse().ok()?, minutes.parse().ok()?, 0, 0).ok()
}

/// The zone of this name; UTC where it is not known, as the operator does.
pub fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap_or(TimeZone::UTC)
}

/// The value at an instant.
pub fn at<T: Copy + PartialEq>(windows: &[Window<T>], base: T, zone: &TimeZone, now: Timestamp) -> T {
    let clock = zone.to_datetime(now).time();
    windows.iter().find(|window| window.covers(clock)).map_or(base, |window| window.value)
}

/// When the value changes next, within two days, and to what.
pub fn next<T: Copy + PartialEq>(
    windows: &[Window<T>],
    base: T,
    zone: &TimeZone,
    now: Timestamp,
) -> Option<(Timestamp, T)> {
    let present = at(windows, base, zone, now);
    let today = zone.to_datetime(now).date();
    let mut edges = Vec::new();
    for ahead in 0..=2 {
        let Ok(day) = today.checked_add(Span::new().days(ahead)) else { continue };
        let times = windows.iter().flat_map(|window| [window.from, window.to]);
        edges.extend(times.filter_map(|time| {
            let zoned = day.to_datetime(time).to_zoned(zone.clone()).ok()?;
            Some(zoned.timestamp()).filter(|edge| *edge > now)
        }));
    }
    edges.sort();
    edges.into_iter().map(|edge| (edge, at(windows, base, zone, edge))).find(|(_, value)| *value != present)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_window_that_covers_the_clock_counts() {
        let windows = [Window::new("22:00", "06:00", 1).unwrap(), Window::new("05:00", "08:00", 2).unwrap()];
        let rome = zone("Europe/Rome");
        let of = |text: &str| {
            let now = text.parse().unwrap();
            (at(&windows, 0, &rome, now), next(&windows, 0, &rome, now).map(|(at, to)| (at.to_string(), to)))
        };
        let change = |at: &str, to| Some((at.to_owned(), to));
        assert_eq!(of("2026-11-24T12:00:00Z"), (0, change("2026-11-24T21:00:00Z", 1)));
        assert_eq!(of("2026-11-24T21:00:00Z"), (1, change("2026-11-25T05:00:00Z", 2)));
        assert_eq!(of("2026-11-25T06:59:59Z"), (2, change("2026-11-25T07:00:00Z", 0)));
        assert_eq!(next::<i32>(&[], 0, &rome, Timestamp::UNIX_EPOCH), None);
        assert!(Window::new("24:00", "6", 1).is_none());
        assert_eq!(zone("nowhere/at/all"), TimeZone::UTC);
    }
}
