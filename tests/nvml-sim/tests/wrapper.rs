//! The library as a client sees it: through nvml-wrapper's own loader.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvidia_ml::{ENV_SPEC, Fault, Process, Sim, Spec};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enums::device::{DeviceArchitecture, GpuLockedClocksSetting};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

/// The library beside this test's own binary, where cargo puts it.
fn library() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    here.parent().expect("it lies in a folder").join("libnvidia_ml.so")
}

fn load() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// One process is one node, so this is one scenario.
#[test]
fn a_node_through_the_real_loader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.json");
    Spec::of(&["GPU-a", "GPU-b"]).write(&path).unwrap();
    assert!(matches!(load(), Err(NvmlError::DriverNotLoaded)), "no spec is named yet");
    // SAFETY: before any other thread of this test reads the environment.
    unsafe { std::env::set_var(ENV_SPEC, &path) };
    let sim = Sim::open(&path).unwrap();
    let nvml = load().unwrap();

    // Given two idle GPUs, when they are looked up, then UUIDs lead to the same ones whatever their index.
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    sim.reverse_indices();
    assert_eq!(nvml.device_by_index(0).unwrap().uuid().unwrap(), "GPU-b");
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
    let mut gpu = nvml.device_by_uuid("GPU-a").unwrap();
    assert_eq!(gpu.uuid().unwrap(), "GPU-a");
    assert_eq!(gpu.name().unwrap(), "NVIDIA A100-SXM4-80GB");

    // What the board is and where.
    let capability = gpu.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (8, 0));
    assert_eq!(gpu.architecture().unwrap(), DeviceArchitecture::Ampere);
    assert_eq!((gpu.mig_mode().unwrap().current, gpu.mig_mode().unwrap().pending), (0, 0));
    let pci = gpu.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.pci_device_id), ("00000000:10:00.0", 0x20b2_10de));
    assert_eq!(gpu.minor_number().unwrap(), 0);
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let other = nvml.device_by_uuid("GPU-b").unwrap();
    assert_eq!(nvml.topology_common_ancestor(&gpu, &other).unwrap(), TopologyLevel::Node);
    assert!(matches!(gpu.link_wrapper_for(0).is_active(), Err(NvmlError::NotSupported)));

    // Bare idle: neither limit nor clocks lower it.
    assert_eq!(gpu.power_usage().unwrap(), 53_700);
    gpu.set_power_management_limit(100_000).unwrap();
    gpu.set_gpu_locked_clocks(GpuLockedClocksSetting::Numeric { min_clock_mhz: 210, max_clock_mhz: 210 })
        .unwrap();
    assert_eq!(gpu.power_usage().unwrap(), 53_700);
    assert!(matches!(gpu.set_power_management_limit(99_999), Err(NvmlError::InvalidArg)));
    assert_eq!(gpu.power_management_limit().unwrap(), 100_000);
    assert_eq!(gpu.power_management_limit_default().unwrap(), 400_000);

    // A process raises the draw as far as clocks and limit let it, and is seen.
    sim.set_processes("GPU-a", &[Process { pid: 77, util: 1.0, memory_mib: 1024 }]).unwrap();
    let processes = gpu.running_compute_processes().unwrap();
    assert_eq!(processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [77]);
    assert!(gpu.power_usage().unwrap() < 100_000);
    gpu.reset_gpu_locked_clocks().unwrap();
    let limited = gpu.power_usage().unwrap();
    assert!((99_000..=100_000).contains(&limited), "{limited}");
    gpu.set_power_management_limit(400_000).unwrap();
    assert_eq!(gpu.power_usage().unwrap(), 400_000);

    // The counter grows by power x time.
    let (before, since) = (gpu.total_energy_consumption().unwrap(), Instant::now());
    std::thread::sleep(Duration::from_millis(300));
    let drawn = (gpu.total_energy_consumption().unwrap() - before) as f64 / 1000.0;
    let expected = 400.0 * since.elapsed().as_secs_f64();
    assert!((drawn - expected).abs() < 0.05 * expected, "{drawn} J, {expected} J expected");

    // Faults.
    sim.set_denied(true);
    assert!(matches!(gpu.set_power_management_limit(300_000), Err(NvmlError::NoPermission)));
    sim.set_denied(false);
    sim.set_fault("GPU-a", Fault::Lost).unwrap();
    assert!(matches!(gpu.power_usage(), Err(NvmlError::GpuLost)));
    assert!(nvml.device_by_uuid("GPU-b").unwrap().power_usage().is_ok(), "the other one is well");
    sim.set_fault("GPU-a", Fault::Hang).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| gpu.power_usage());
        // An answer that must not come needs some time to come in.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!call.is_finished(), "the call hangs");
        assert!(nvml.device_by_uuid("GPU-b").unwrap().power_usage().is_ok(), "and only that one");
        sim.set_fault("GPU-a", Fault::None).unwrap();
        assert!(call.join().unwrap().is_ok());
    });
    assert!(matches!(gpu.serial(), Err(NvmlError::FailedToLoadSymbol(_))), "what is not there is said");

    // A critical Xid error reaches whoever waits for it, once, and names the GPU even when that is lost.
    let events = nvml.create_event_set().unwrap();
    let events = other.register_events(EventTypes::CRITICAL_XID_ERROR, events).unwrap();
    assert!(matches!(events.wait(0), Err(NvmlError::Timeout)), "nothing has happened yet");
    let event = std::thread::scope(|scope| {
        scope.spawn(|| ["GPU-a", "GPU-b"].map(|uuid| sim.set_fault(uuid, Fault::Lost).unwrap()));
        events.wait(60_000).unwrap()
    });
    assert_eq!(event.event_data, Some(XidError::Value(79)));
    assert_eq!(event.device.uuid().unwrap(), "GPU-b", "the other one is in no set");
    assert!(matches!(events.wait(0), Err(NvmlError::Timeout)), "once");
    sim.set_fault("GPU-b", Fault::ResetRequired).unwrap();
    assert_eq!(events.wait(0).unwrap().event_data, Some(XidError::Value(48)));
    drop(events);
    for uuid in ["GPU-a", "GPU-b"] {
        sim.set_fault(uuid, Fault::None).unwrap();
    }

    // Other writers: another client's limit is what is requested, a limiter out of band lowers what is enforced.
    sim.set_limit("GPU-a", 250.0).unwrap();
    sim.set_outer_limit("GPU-a", Some(220.0)).unwrap();
    assert_eq!(gpu.power_management_limit().unwrap(), 250_000);
    assert_eq!(gpu.enforced_power_limit().unwrap(), 220_000);
    sim.set_outer_limit("GPU-a", None).unwrap();
    assert_eq!(gpu.enforced_power_limit().unwrap(), 250_000);

    // Settings live in the driver, not in the client.
    gpu.set_power_management_limit(300_000).unwrap();
    assert_eq!(sim.gpu("GPU-a").unwrap().highest_set_watts, Some(400.0));

    // A container that has lost a GPU's device cannot open it; one that has lost all cannot initialise the library.
    sim.set_fault("GPU-a", Fault::Unknown).unwrap();
    assert!(matches!(nvml.device_by_uuid("GPU-a"), Err(NvmlError::Unknown)));
    assert!(matches!(gpu.power_usage(), Err(NvmlError::Unknown)));
    assert!(load().is_ok() && nvml.device_by_uuid("GPU-b").is_ok());
    sim.set_fault("GPU-b", Fault::Unknown).unwrap();
    assert!(matches!(load(), Err(NvmlError::Unknown)));
    for uuid in ["GPU-a", "GPU-b"] {
        sim.set_fault(uuid, Fault::None).unwrap();
    }
    drop(nvml);
    assert_eq!(sim.gpu("GPU-a").unwrap().limit_watts, 300.0);

    // A driver that goes away takes the settings along.
    sim.set_driver_loaded(false);
    assert!(matches!(load(), Err(NvmlError::DriverNotLoaded)));
    sim.set_driver_loaded(true);
    assert!(sim.gpu("GPU-a").unwrap().is_default());
}

#[test]
fn a_node_may_have_no_gpu_and_a_spec_must_make_sense() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.json");
    Spec::of(&[]).write(&path).unwrap();
    assert!(Sim::open(&path).unwrap().gpus().is_empty());
    let mut twice = Spec::of(&["GPU-a", "GPU-a"]);
    assert!(twice.write(&path).is_err());
    twice.gpus.pop();
    twice.gpus[0].limit_min_watts = 500.0;
    assert!(twice.write(&path).is_err());
}

#[test]
fn without_persistence_mode_settings_go_with_the_last_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.json");
    let mut spec = Spec::of(&["GPU-a"]);
    spec.gpus[0].persistence = false;
    spec.write(&path).unwrap();
    let shared = nvidia_ml::shared::Shared::open(&path).unwrap();
    shared.with(|node| {
        node.enter(std::process::id());
        node.gpus()[0].limit = 200_000;
    });
    let sim = Sim::open(&path).unwrap();
    assert_eq!(sim.gpu("GPU-a").unwrap().limit_watts, 200.0);
    shared.with(|node| node.leave(std::process::id()));
    assert!(sim.gpu("GPU-a").unwrap().is_default());
}
