//! Units as types. Validated values are finite; constructors do not check, API boundaries do.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0.0);

            /// Total order (`f64::total_cmp`), for sorting.
            pub fn total_cmp(&self, other: &Self) -> Ordering {
                self.0.total_cmp(&other.0)
            }

            /// The larger of two values.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of two values.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// Whether the value is neither infinite nor NaN.
            pub fn is_finite(self) -> bool {
                self.0.is_finite()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)?;
                f.write_str($unit)
            }
        }
    };
}

macro_rules! additive {
    ($($name:ident),*) => {$(
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl Neg for $name {
            type Output = Self;
            fn neg(self) -> Self {
                Self(-self.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    )*};
}

quantity! {
    /// Power in watts.
    Watts, " W"
}
quantity! {
    /// Energy in joules.
    Joules, " J"
}
quantity! {
    /// Duration in seconds.
    Seconds, " s"
}
quantity! {
    /// An instant: seconds since an origin shared by all times of a snapshot (the Unix epoch in the operator,
    /// the start of the trace in the simulator).
    Time, " s"
}
quantity! {
    /// Money. The administrator chooses the currency; it is only a label, never a factor.
    Money, ""
}
quantity! {
    /// Money per second: the cost of lateness.
    CostRate, "/s"
}
quantity! {
    /// Money per joule at the GPU, including cooling and distribution (PUE).
    EnergyPrice, "/J"
}
additive!(Watts, Joules, Seconds, Money, CostRate);

impl EnergyPrice {
    /// Creates a price from the price of a kilowatt-hour at the meter and the site's power usage
    /// effectiveness (PUE, at least 1).
    pub fn per_kwh(price: f64, pue: f64) -> Self {
        Self(price / 3.6e6 * pue)
    }
}

impl Joules {
    /// Energy in kilowatt-hours.
    pub fn kwh(self) -> f64 {
        self.0 / 3.6e6
    }
}

impl Mul<Seconds> for Watts {
    type Output = Joules;
    fn mul(self, time: Seconds) -> Joules {
        Joules(self.0 * time.0)
    }
}

impl Div<Seconds> for Joules {
    type Output = Watts;
    fn div(self, time: Seconds) -> Watts {
        Watts(self.0 / time.0)
    }
}

impl Mul<Joules> for EnergyPrice {
    type Output = Money;
    fn mul(self, energy: Joules) -> Money {
        Money(self.0 * energy.0)
    }
}

impl Mul<Seconds> for CostRate {
    type Output = Money;
    fn mul(self, time: Seconds) -> Money {
        Money(self.0 * time.0)
    }
}

impl Add<Seconds> for Time {
    type Output = Self;
    fn add(self, length: Seconds) -> Self {
        Self(self.0 + length.0)
    }
}

impl Sub<Seconds> for Time {
    type Output = Self;
    fn sub(self, length: Seconds) -> Self {
        Self(self.0 - length.0)
    }
}

impl Sub for Time {
    type Output = Seconds;
    fn sub(self, earlier: Self) -> Seconds {
        Seconds(self.0 - earlier.0)
    }
}

/// A number of whole GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuCount(pub u32);

impl fmt::Display for GpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Add for GpuCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for GpuCount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for GpuCount {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self(0), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kilowatt_for_an_hour_is_a_kilowatt_hour() {
        assert_eq!((Watts(1000.0) * Seconds(3600.0)).kwh(), 1.0);
    }

    #[test]
    fn instants_and_lengths_do_not_mix_up() {
        let start = Time(100.0);
        assert_eq!((start + Seconds(20.0)) - start, Seconds(20.0));
    }
}
