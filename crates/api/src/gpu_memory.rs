//! What `spec.gpus.memoryGiB` means: one rule for plans and for what is carried out.

use crate::training_job::GpuRequest;

/// Part of a board's nominal memory that its label must show, percent.
///
/// People say the nominal size; GPU feature discovery reports what the driver leaves, and in-line ECC takes a
/// sixteenth of GDDR memory: 15360 MiB of a T4 ("16 GB"), 23028 of an A10 ("24 GB"), 46068 of an L40S ("48 GB"),
/// 81559 of an H100 ("80 GB"), 11441 of a K80 ("12 GB").
const OF_NOMINAL: i64 = 93;

impl GpuRequest {
    /// Whether a GPU with this many MiB (the node's label `nvidia.com/gpu.memory`) has the memory that is asked for. Judged for
    /// each node: boards of one product name may differ.
    pub fn memory_fits(&self, mib: i64) -> bool {
        self.memory_gib.is_none_or(|gib| {
            mib.saturating_mul(100) >= i64::from(gib).saturating_mul(1_024).saturating_mul(OF_NOMINAL)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_the_memory_that_people_call_theirs_and_no_more() {
        for (mib, nominal, above) in [
            (15_360, 16, 20),    // Tesla-T4
            (23_034, 24, 32),    // NVIDIA-L4
            (23_028, 24, 32),    // NVIDIA-A10G
            (46_068, 48, 64),    // NVIDIA-L40S
            (16_160, 16, 24),    // Tesla-V100-SXM2-16GB
            (40_960, 40, 48),    // NVIDIA-A100-SXM4-40GB
            (81_251, 80, 94),    // NVIDIA-A100-SXM4-80GB
            (81_559, 80, 94),    // NVIDIA-H100-80GB-HBM3
            (143_771, 141, 180), // NVIDIA-H200
        ] {
            let asks = |gib| GpuRequest { memory_gib: Some(gib), ..GpuRequest::default() };
            assert!(asks(nominal).memory_fits(mib), "{mib} MiB are {nominal} GiB");
            assert!(!asks(above).memory_fits(mib), "{mib} MiB are not {above} GiB");
        }
        assert!(GpuRequest::default().memory_fits(0), "who asks for nothing gets anything");
    }
}
