//! Locked clocks of the administrator: what GPUs get back whose clocks the setter has locked. NVML does not say which clocks
//! are locked.

use std::str::FromStr;

/// GPU type that stands for all others.
const ANY: &str = "*";

/// Locked SM clocks of a GPU type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedClocks {
    /// Product as in the label `nvidia.com/gpu.product`, or [`ANY`].
    gpu_type: String,
    /// Lowest and highest, MHz.
    range_mhz: (u32, u32),
}

/// A value that does not parse.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not TYPE=MIN,MAX with SM clocks in MHz, MIN at most MAX, MAX from 1 to 100000")]
pub struct NotLockedClocks;

impl FromStr for LockedClocks {
    type Err = NotLockedClocks;

    fn from_str(text: &str) -> Result<Self, NotLockedClocks> {
        let parsed = || {
            let (gpu_type, range) = text.split_once('=')?;
            let (lowest, highest) = range.split_once(',')?;
            let range_mhz: (u32, u32) = (lowest.parse().ok()?, highest.parse().ok()?);
            let valid = range_mhz.0 <= range_mhz.1 && (1..=100_000).contains(&range_mhz.1);
            (valid && !gpu_type.is_empty()).then(|| Self { gpu_type: gpu_type.to_owned(), range_mhz })
        };
        parsed().ok_or(NotLockedClocks)
    }
}

/// Locked clocks of a product, MHz; `None`: its clocks are not locked.
pub fn of_product(all: &[LockedClocks], product: &str) -> Option<(u32, u32)> {
    let label = product.replace(' ', "-");
    let of = |gpu_type: &str| all.iter().find(|clocks| clocks.gpu_type == gpu_type);
    of(&label).or_else(|| of(ANY)).map(|clocks| clocks.range_mhz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_those_of_the_type_else_those_of_all_others() {
        let all = ["*=210,1800", "NVIDIA-A100-SXM4-80GB=0,1200"].map(|text| text.parse().expect(text));
        assert_eq!(of_product(&all, "NVIDIA A100-SXM4-80GB"), Some((0, 1200)));
        assert_eq!(of_product(&all, "Tesla T4"), Some((210, 1800)));
        assert_eq!(of_product(&all[1..], "Tesla T4"), None);
    }

    #[test]
    fn what_is_no_range_of_clocks_is_refused() {
        for wrong in
            ["", "A100", "A100=", "A100=210", "=210,1800", "A=1800,210", "A=0,0", "A=-1,5", "A=1,2,3"]
        {
            assert_eq!(wrong.parse::<LockedClocks>(), Err(NotLockedClocks), "{wrong}");
        }
    }
}
