//! Daily windows, in a time zone, as steps of time.

use std::collections::BTreeSet;

use crate::{Seconds, StepFunction, Time};
use jiff::civil::{self, Date};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// Days for which windows are laid out. Plans look further ahead; see [`mean_beyond`].
const AHEAD_DAYS: i32 = 4;
/// The last step is the mean of the two days before it: whole days, so that each hour of the day counts alike.
const MEAN_OVER: Seconds = Seconds(172_800.0);

/// A value between two times of day. If `to` is not after `from`, it passes midnight.
#[derive(Clone, Copy, Debug)]
pub struct Window<T> {
    from: civil::Time,
    to: civil::Time,
    value: T,
}

impl<T> Window<T> {
    /// From `HH:MM` to `HH:MM`; `None` if one of them is no time of day.
    pub fn new(from: &str, to: &str, value: T) -> Option<Self> {
        Some(Self { from: time_of_day(from)?, to: time_of_day(to)?, value })
    }

    /// Whether it covers an instant, by the clock in `zone`.
    pub fn covers(&self, zone: &TimeZone, at: Timestamp) -> bool {
        let at = zone.to_datetime(at).time();
        if self.from < self.to { (self.from..self.to).contains(&at) } else { at >= self.from || at < self.to }
    }
}

/// Parses `HH:MM`; `None` if malformed.
fn time_of_day(text: &str) -> Option<civil::Time> {
    let (hours, minutes) = text.split_once(':')?;
    civil::Time::new(hours.parse().ok()?, minutes.parse().ok()?, 0, 0).ok()
}

/// The time zone of this IANA name. Its data are part of the program.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name).ok()
}

/// Windows as steps, from a day before `now` to some days after it. The first window that covers the clock's
/// time in `zone` counts, else `base`. A window has one hour more or less on days on which the clock is set.
pub fn daily<T: Copy + PartialEq>(
    windows: &[Window<T>],
    base: T,
    zone: &TimeZone,
    now: i64,
) -> StepFunction<T> {
    let value = |at: Timestamp| {
        windows.iter().find(|window| window.covers(zone, at)).map_or(base, |window| window.value)
    };
    let mut steps: Vec<(Time, T)> = Vec::new();
    for at in edges(windows, zone, now) {
        let value = value(at);
        if steps.last().is_none_or(|(_, last)| *last != value) {
            steps.push((Time(at.as_second() as f64), value));
        }
    }
    StepFunction::new(steps).unwrap_or_else(|_| StepFunction::flat(base))
}

/// Steps of [`daily`] with a mean at their end. The last step holds for ever: with the value of its time of day, a far
/// start would seem better than it will be, and jobs would wait for it.
pub fn mean_beyond<T: Copy>(
    steps: StepFunction<T>,
    to_f64: fn(T) -> f64,
    from_f64: fn(f64) -> T,
) -> StepFunction<T> {
    let mut windows = steps.windows().to_vec();
    if let [_, .., (begin, last)] = windows.as_mut_slice() {
        let (from, to) = (*begin - MEAN_OVER, *begin);
        let sum: f64 = steps.pieces(from, to).map(|(a, b, piece)| to_f64(piece) * (b - a).0).sum();
        *last = from_f64(sum / MEAN_OVER.0);
    }
    StepFunction::new(windows).unwrap_or(steps)
}

/// Instants at which a window may begin or end, in order.
fn edges<T>(windows: &[Window<T>], zone: &TimeZone, now: i64) -> BTreeSet<Timestamp> {
    let Ok(now) = Timestamp::from_second(now) else { return BTreeSet::new() };
    let today = zone.to_datetime(now).date();
    let day = |ahead: i32| today.checked_add(Span::new().days(ahead)).ok();
    let days: Vec<Date> = (-1..=AHEAD_DAYS).filter_map(day).collect();
    let times = windows.iter().flat_map(|window| [window.from, window.to]).chain([civil::Time::midnight()]);
    let times: BTreeSet<civil::Time> = times.collect();
    let mut edges = BTreeSet::new();
    for date in &days {
        for time in &times {
            // A time that the clock shows twice is an edge both times.
            let at = zone.to_ambiguous_timestamp(date.to_datetime(*time));
            edges.extend([at.earlier(), at.later()].into_iter().filter_map(Result::ok));
        }
    }
    // Setting the clock may enter or leave a window.
    if let (Some(first), Some(last)) = (edges.first().copied(), edges.last().copied()) {
        let changes = zone.following(first).map(|change| change.timestamp());
        edges.extend(changes.take_while(|at| *at < last));
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().expect("an instant").as_second()
    }

    fn night(zone: &str, now: &str) -> StepFunction<i32> {
        let windows = [Window::new("22:00", "06:00", 1).expect("a window")];
        daily(&windows, 0, &time_zone(zone).expect("a zone"), at(now))
    }

    #[test]
    fn a_window_that_passes_midnight_holds_on_both_sides() {
        let steps = night("UTC", "2026-11-23T12:00:00Z");
        for (instant, value) in [
            ("2026-11-23T12:00:00Z", 0),
            ("2026-11-23T21:59:59Z", 0),
            ("2026-11-23T22:00:00Z", 1),
            ("2026-11-24T05:59:59Z", 1),
            ("2026-11-24T06:00:00Z", 0),
        ] {
            assert_eq!(steps.at(Time(at(instant) as f64)), Some(value), "{instant}");
        }
        let noon = Time(at("2026-11-23T12:00:00Z") as f64);
        assert_eq!(steps.next_edge(noon), Some(Time(at("2026-11-23T22:00:00Z") as f64)));
    }

    #[test]
    fn windows_follow_the_clock_of_their_zone_when_it_is_set() {
        // Rome's clock goes from 3:00 back to 2:00 on 2026-10-25, and from 2:00 to 3:00 on 2027-03-28.
        let hours = |now: &str, end: &str| {
            let steps = night("Europe/Rome", now);
            let noon = Time(at(now) as f64);
            let begin = steps.next_edge(noon).expect("an evening");
            let over = steps.next_edge(begin).expect("a morning");
            assert_eq!(over, Time(at(end) as f64));
            (over - begin).0 / 3_600.0
        };
        assert_eq!(hours("2026-10-23T12:00:00Z", "2026-10-24T04:00:00Z"), 8.0);
        assert_eq!(hours("2026-10-24T12:00:00Z", "2026-10-25T05:00:00Z"), 9.0);
        assert_eq!(hours("2027-03-27T12:00:00Z", "2027-03-28T04:00:00Z"), 7.0);
    }

    #[test]
    fn a_window_within_the_hour_that_is_skipped_or_repeated_is_never_or_twice() {
        let windows = [Window::new("02:15", "02:45", 1).expect("a window")];
        let rome = time_zone("Europe/Rome").expect("a zone");
        let minutes = |now: &str| {
            let (from, to) = (at(now), at(now) + 86_400);
            let steps = daily(&windows, 0, &rome, from);
            let pieces = steps.pieces(Time(from as f64), Time(to as f64));
            pieces.map(|(a, b, value)| f64::from(value) * (b - a).0 / 60.0).sum::<f64>()
        };
        assert_eq!(minutes("2026-10-23T12:00:00Z"), 30.0);
        assert_eq!(minutes("2026-10-24T12:00:00Z"), 60.0, "the hour is repeated");
        assert_eq!(minutes("2027-03-27T12:00:00Z"), 0.0, "the hour is skipped");
    }

    #[test]
    fn the_first_of_two_windows_counts_and_nonsense_is_left_out() {
        let windows: Vec<Window<i32>> = [
            Window::new("08:00", "20:00", 1),
            Window::new("12:00", "22:00", 2),
            Window::new("25:00", "26:00", 3),
        ]
        .into_iter()
        .flatten()
        .collect();
        let steps = daily(&windows, 0, &TimeZone::UTC, at("2026-11-23T00:00:00Z"));
        let value = |hour: i64| steps.at(Time((at("2026-11-23T00:00:00Z") + hour * 3_600) as f64));
        assert_eq!([7, 8, 12, 19, 20, 21, 22].map(|h| value(h).expect("a value")), [0, 1, 1, 1, 2, 2, 0]);
    }

    #[test]
    fn an_unknown_zone_is_none() {
        assert!(time_zone("Mars/Phobos").is_none());
        assert!(time_zone("Europe/Rome").is_some_and(|zone| zone.iana_name() == Some("Europe/Rome")));
    }
}
