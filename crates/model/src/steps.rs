//! Step functions of time: hourly tariffs, power budgets by window.

use serde::{Deserialize, Serialize};

use crate::{EnergyPrice, Time};

/// A step function: `[from, value]` pairs with increasing `from`. Each value holds until the next `from`.
///
/// The first value also holds before its own `from`, so a constant is one pair with any `from`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepFunction<T> {
    windows: Vec<(Time, T)>,
}

/// Money per joule over time.
pub type Tariff = StepFunction<EnergyPrice>;

/// Why a list of windows is not a valid step function.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepFunctionError {
    /// The list is empty.
    #[error("has no window")]
    Empty,
    /// Start times must be finite and strictly increasing.
    #[error("window {0} does not begin after the one before it")]
    NotRising(usize),
}

impl<T: Copy> StepFunction<T> {
    /// A constant function.
    pub fn flat(value: T) -> Self {
        Self { windows: vec![(Time::ZERO, value)] }
    }

    /// Creates the function from windows ordered by start time.
    ///
    /// # Errors
    /// [`StepFunctionError`] if the list is empty, or start times are not finite and strictly increasing.
    pub fn new(windows: Vec<(Time, T)>) -> Result<Self, StepFunctionError> {
        let steps = Self { windows };
        steps.check()?;
        Ok(steps)
    }

    /// Validates like [`StepFunction::new`]; needed after deserializing.
    ///
    /// # Errors
    /// [`StepFunctionError`], as for [`StepFunction::new`].
    pub fn check(&self) -> Result<(), StepFunctionError> {
        if self.windows.is_empty() {
            return Err(StepFunctionError::Empty);
        }
        for (i, (from, _)) in self.windows.iter().enumerate() {
            if !from.is_finite() || (i > 0 && self.windows[i - 1].0 >= *from) {
                return Err(StepFunctionError::NotRising(i));
            }
        }
        Ok(())
    }

    /// The windows, in order.
    pub fn windows(&self) -> &[(Time, T)] {
        &self.windows
    }

    /// The value at an instant; `None` only for a list that fails [`StepFunction::check`].
    pub fn at(&self, time: Time) -> Option<T> {
        let after = self.windows.partition_point(|(from, _)| *from <= time);
        self.windows.get(after.saturating_sub(1)).map(|(_, value)| *value)
    }

    /// The first instant after `time` at which the value may change.
    pub fn next_edge(&self, time: Time) -> Option<Time> {
        let after = self.windows.partition_point(|(from, _)| *from <= time);
        // The first value also holds before its start, so its start is no edge.
        self.windows.get(after.max(1)).map(|(from, _)| *from)
    }

    /// The values that hold in `[from, to)`, each with its interval.
    pub fn pieces(&self, from: Time, to: Time) -> impl Iterator<Item = (Time, Time, T)> + '_ {
        let first = self.windows.partition_point(|(begin, _)| *begin <= from).saturating_sub(1);
        self.windows[first.min(self.windows.len())..].iter().enumerate().map_while(
            move |(k, (begin, value))| {
                let begin = if k == 0 { from } else { *begin };
                let end = self.windows.get(first + k + 1).map_or(to, |(next, _)| next.min(to));
                (begin < to).then_some((begin, end, *value))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day_and_night() -> StepFunction<f64> {
        StepFunction::new(vec![(Time(10.0), 1.0), (Time(20.0), 2.0), (Time(30.0), 1.0)]).unwrap()
    }

    #[test]
    fn each_value_holds_until_the_next_begins() {
        let steps = day_and_night();
        let at: Vec<_> = [0.0, 10.0, 19.9, 20.0, 99.0].iter().map(|t| steps.at(Time(*t)).unwrap()).collect();
        assert_eq!(at, [1.0, 1.0, 1.0, 2.0, 1.0]);
        assert_eq!(steps.next_edge(Time(0.0)), Some(Time(20.0)));
        assert_eq!(steps.next_edge(Time(30.0)), None);
    }

    #[test]
    fn pieces_tile_the_interval_exactly() {
        let pieces: Vec<_> = day_and_night().pieces(Time(5.0), Time(25.0)).collect();
        assert_eq!(pieces, [(Time(5.0), Time(20.0), 1.0), (Time(20.0), Time(25.0), 2.0)]);
        assert_eq!(day_and_night().pieces(Time(7.0), Time(7.0)).count(), 0);
    }

    #[test]
    fn windows_out_of_order_are_named() {
        let windows = vec![(Time(5.0), 1.0), (Time(5.0), 2.0)];
        assert_eq!(StepFunction::new(windows), Err(StepFunctionError::NotRising(1)));
        assert_eq!(StepFunction::<f64>::new(vec![]), Err(StepFunctionError::Empty));
    }
}
