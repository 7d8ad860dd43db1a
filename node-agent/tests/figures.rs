//! A driver that answers any one call with any code: through nvml-wrapper's own loader.

use andreas_node_agent::gpu::nvml::NvmlLibrary;
use andreas_node_agent::gpu::{GpuError, Library as _};
use nvidia_ml::{ENV_SPEC, Sim, Spec};

/// The calls that read a GPU, as in `nvml.h`.
const CALLS: [&str; 12] = [
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetSupportedMemoryClocks",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerUsage nvmlDeviceGetTotalEnergyConsumption",
];
/// Codes of NVML, the last one of a driver to come: they say nothing about the GPU.
const CODES: [u32; 12] = [2, 3, 4, 8, 10, 13, 19, 21, 25, 26, 27, 77];
const UNKNOWN: u32 = 999;

#[test]
fn a_figure_that_cannot_be_read_is_missing_and_nothing_more() {
    let this = std::env::current_exe().unwrap();
    let Some(path) = std::env::var_os(ENV_SPEC) else {
        // The library reads the node's name from the environment of its process.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.json");
        Spec::of(&["GPU-a"]).write(&path).unwrap();
        let run = std::process::Command::new(this).env(ENV_SPEC, &path).status();
        return assert!(run.unwrap().success());
    };
    let sim = Sim::open(path.as_ref()).unwrap();
    let library = NvmlLibrary::new(this.with_file_name("libnvidia_ml.so"));
    let whole = library.open("GPU-a").unwrap().facts().unwrap();
    for call in CALLS {
        for code in CODES.into_iter().chain([UNKNOWN]) {
            sim.set_failing(call, code);
            assert_eq!(library.uuids().unwrap(), ["GPU-a"], "{call} {code}");
            let mut gpu = library.open("GPU-a").unwrap();
            let (facts, sample) = (gpu.facts(), gpu.sample());
            let (facts, sample) = (facts.expect(call), sample.expect(call));
            // What the GPU does not have, and processes that only others may see, are no failure of the driver.
            let silent = [3, 13].contains(&code) || (code == 4 && call.contains("Processes"));
            let unread: Vec<&str> = facts.unread.union(&sample.unread).copied().collect();
            assert_eq!(unread.is_empty(), silent, "{call} {code}: {unread:?}");
            assert!(unread.iter().all(|name| call.contains(name)), "{call} {code}: {unread:?}");
            let power = (sample.power_mw.is_none(), sample.energy_mj.is_none());
            assert_eq!(power, (call.contains("PowerUsage"), call.contains("PowerUsage")), "{call} {code}");
            sim.set_failing("", 0);
            assert_eq!(
                (gpu.facts().unwrap(), gpu.sample().unwrap().power_mw.is_some()),
                (whole.clone(), true)
            );
        }
        for (code, fatal) in [(15, GpuError::Lost), (16, GpuError::ResetRequired)] {
            sim.set_failing(call, code);
            let mut gpu = library.open("GPU-a").unwrap();
            assert_eq!(gpu.facts().and_then(|_| gpu.sample()).unwrap_err(), fatal, "{call}");
        }
    }
    // A GPU whose UUID cannot be read either is not there.
    for code in [UNKNOWN, 77] {
        sim.set_failing("nvmlDeviceGetPowerUsage nvmlDeviceGetUUID", code);
        let mut gpu = library.open("GPU-a").unwrap();
        assert!(matches!(gpu.sample(), Err(GpuError::Other(_))), "{code}");
    }
    // Where the limit in force cannot be read, none is set: it could be above that of others.
    for call in ["nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit"] {
        sim.set_failing(call, UNKNOWN);
        assert!(library.open("GPU-a").unwrap().power_limits().is_err(), "{call}");
    }
}
