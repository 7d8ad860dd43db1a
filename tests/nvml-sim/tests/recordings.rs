//! What real drivers answered, and what the simulated boards answer to the same calls.
//!
//! A recording holds each call's return code and, where it is a fact of the board, its value. `make long WHAT=hardware` writes that
//! of the machine it runs on. It reads only.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::fs;
use std::path::{Path, PathBuf};

use nvidia_ml::{ENV_SPEC, GpuSpec, Spec};
use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sys::{NvmlLib, nvmlDevice_t, nvmlReturn_t};

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recordings");
/// Names the folder that recordings of this machine are written to, if not [`RECORDINGS`].
const RECORD: &str = "RECORD";
/// Return code of a function that the library does not have.
const MISSING: nvmlReturn_t = sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND;

/// What one board answered.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Recording {
    /// Version of the driver.
    driver: String,
    /// Its newest CUDA version, as NVML counts: 1000 x major + 10 x minor.
    cuda: c_int,
    calls: BTreeMap<String, Call>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Call {
    /// Return code.
    code: nvmlReturn_t,
    /// What the call said; null where it failed, and where it says what is now and not what the board is.
    value: Value,
}

/// Calls a function of a library; `MISSING` where it has none.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),*)) => {
        match $library.$name.as_ref() {
            // SAFETY: each place passed is a local variable of the type that the function's declaration asks for.
            Ok(function) => unsafe { function($($argument),*) },
            Err(_) => MISSING,
        }
    };
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Answers of a device.
struct Reader<'a> {
    library: &'a NvmlLib,
    device: nvmlDevice_t,
    calls: BTreeMap<String, Call>,
}

impl Reader<'_> {
    fn put(&mut self, name: impl Into<String>, code: nvmlReturn_t, value: Value) {
        let value = if code == sys::nvmlReturn_enum_NVML_SUCCESS { value } else { Value::Null };
        self.calls.insert(name.into(), Call { code, value });
    }

    fn all(&mut self) {
        self.identity();
        self.partitions();
        self.limits();
        self.clocks();
        self.readings();
        self.mistakes();
    }

    fn identity(&mut self) {
        let (library, device) = (self.library, self.device);
        let mut name = [0; 96];
        let code = call!(library, nvmlDeviceGetName(device, name.as_mut_ptr(), 96));
        self.put("nvmlDeviceGetName", code, text(&name).into());
        let (mut major, mut minor) = (0, 0);
        let code = call!(library, nvmlDeviceGetCudaComputeCapability(device, &mut major, &mut minor));
        self.put("nvmlDeviceGetCudaComputeCapability", code, json!([major, minor]));
        let mut number: c_uint = 0;
        let code = call!(library, nvmlDeviceGetArchitecture(device, &mut number));
        self.put("nvmlDeviceGetArchitecture", code, number.into());
        let code = call!(library, nvmlDeviceGetBrand(device, &mut number));
        self.put("nvmlDeviceGetBrand", code, number.into());
        let code = call!(library, nvmlDeviceGetMinorNumber(device, &mut number));
        self.put("nvmlDeviceGetMinorNumber", code, Value::Null);
        let code = call!(library, nvmlDeviceGetPersistenceMode(device, &mut number));
        self.put("nvmlDeviceGetPersistenceMode", code, Value::Null);
        // SAFETY: a struct of numbers, for which 0 is a value.
        let mut pci: sys::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
        let code = call!(library, nvmlDeviceGetPciInfo_v3(device, &mut pci));
        self.put("nvmlDeviceGetPciInfo_v3", code, format!("{:#010x}", pci.pciDeviceId).into());
        // SAFETY: as above.
        let mut memory: sys::nvmlMemory_t = unsafe { std::mem::zeroed() };
        let code = call!(library, nvmlDeviceGetMemoryInfo(device, &mut memory));
        self.put("nvmlDeviceGetMemoryInfo", code, (memory.total >> 20).into());
        let mut types: c_ulonglong = 0;
        let code = call!(library, nvmlDeviceGetSupportedEventTypes(device, &mut types));
        let xid = types & sys::nvmlEventTypeXidCriticalError as c_ulonglong != 0;
        self.put("nvmlDeviceGetSupportedEventTypes", code, json!({"criticalXid": xid}));
        let code = call!(library, nvmlDeviceGetNvLinkState(device, 0, &mut number));
        self.put("nvmlDeviceGetNvLinkState", code, Value::Null);
        // SAFETY: as above.
        let mut fabric: sys::nvmlGpuFabricInfo_t = unsafe { std::mem::zeroed() };
        let code = call!(library, nvmlDeviceGetGpuFabricInfo(device, &mut fabric));
        self.put("nvmlDeviceGetGpuFabricInfo", code, Value::Null);
    }

    fn partitions(&mut self) {
        let (library, device) = (self.library, self.device);
        let (mut now, mut pending) = (0, 0);
        let code = call!(library, nvmlDeviceGetMigMode(device, &mut now, &mut pending));
        self.put("nvmlDeviceGetMigMode", code, json!([now, pending]));
        let mut number: c_uint = 0;
        let code = call!(library, nvmlDeviceGetMaxMigDeviceCount(device, &mut number));
        self.put("nvmlDeviceGetMaxMigDeviceCount", code, number.into());
        let code = call!(library, nvmlDeviceIsMigDeviceHandle(device, &mut number));
        self.put("nvmlDeviceIsMigDeviceHandle", code, number.into());
        let mut other: nvmlDevice_t = std::ptr::null_mut();
        let code = call!(library, nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &mut other));
        self.put("nvmlDeviceGetMigDeviceHandleByIndex", code, Value::Null);
        let code = call!(library, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &mut other));
        self.put("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", code, Value::Null);
        // SAFETY: a struct of numbers, for which 0 is a value.
        let mut profile: sys::nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        let whole = sys::NVML_GPU_INSTANCE_PROFILE_1_SLICE;
        let code = call!(library, nvmlDeviceGetGpuInstanceProfileInfo(device, whole, &mut profile));
        self.put("nvmlDeviceGetGpuInstanceProfileInfo", code, Value::Null);
        // SAFETY: as above.
        let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
        let code = call!(library, nvmlDeviceGetAttributes_v2(device, &mut attributes));
        self.put("nvmlDeviceGetAttributes_v2", code, Value::Null);
    }

    fn limits(&mut self) {
        let (library, device) = (self.library, self.device);
        let (mut low, mut high) = (0, 0);
        let code = call!(library, nvmlDeviceGetPowerManagementLimitConstraints(device, &mut low, &mut high));
        self.put("nvmlDeviceGetPowerManagementLimitConstraints", code, json!([low, high]));
        let code = call!(library, nvmlDeviceGetPowerManagementDefaultLimit(device, &mut low));
        self.put("nvmlDeviceGetPowerManagementDefaultLimit", code, low.into());
        let code = call!(library, nvmlDeviceGetPowerManagementLimit(device, &mut low));
        self.put("nvmlDeviceGetPowerManagementLimit", code, Value::Null);
        let code = call!(library, nvmlDeviceGetEnforcedPowerLimit(device, &mut low));
        self.put("nvmlDeviceGetEnforcedPowerLimit", code, Value::Null);
    }

    fn clocks(&mut self) {
        let (library, device) = (self.library, self.device);
        let (sm, memory) = (sys::nvmlClockType_enum_NVML_CLOCK_SM, sys::nvmlClockType_enum_NVML_CLOCK_MEM);
        let mut clock: c_uint = 0;
        for (name, kind) in [("SM", sm), ("memory", memory)] {
            let code = call!(library, nvmlDeviceGetMaxClockInfo(device, kind, &mut clock));
            self.put(format!("nvmlDeviceGetMaxClockInfo {name}"), code, clock.into());
            let code = call!(library, nvmlDeviceGetClockInfo(device, kind, &mut clock));
            self.put(format!("nvmlDeviceGetClockInfo {name}"), code, Value::Null);
            let (mut low, mut high) = (0, 0);
            let code = call!(library, nvmlDeviceGetMinMaxClockOfPState(device, kind, 0, &mut low, &mut high));
            self.put(format!("nvmlDeviceGetMinMaxClockOfPState {name} P0"), code, json!([low, high]));
        }
        let (mut low, mut high) = (0, 0);
        let code = call!(library, nvmlDeviceGetMinMaxClockOfPState(device, sm, 8, &mut low, &mut high));
        self.put("nvmlDeviceGetMinMaxClockOfPState SM P8", code, json!([low, high]));

        let mut clocks = [0; 1024];
        let mut count = clocks.len() as c_uint;
        let code =
            call!(library, nvmlDeviceGetSupportedMemoryClocks(device, &mut count, clocks.as_mut_ptr()));
        let listed: Vec<c_uint> = clocks.iter().copied().take(count as usize).collect();
        self.put("nvmlDeviceGetSupportedMemoryClocks", code, json!(listed));
        let highest = listed.iter().max().copied().unwrap_or(0);
        count = 0;
        let code =
            call!(library, nvmlDeviceGetSupportedMemoryClocks(device, &mut count, std::ptr::null_mut()));
        self.put("nvmlDeviceGetSupportedMemoryClocks without room", code, Value::Null);

        count = clocks.len() as c_uint;
        let code = call!(
            library,
            nvmlDeviceGetSupportedGraphicsClocks(device, highest, &mut count, clocks.as_mut_ptr())
        );
        let listed: Vec<c_uint> = clocks.iter().copied().take(count as usize).collect();
        let value =
            json!({"count": count, "first": listed.first(), "second": listed.get(1), "last": listed.last()});
        self.put("nvmlDeviceGetSupportedGraphicsClocks", code, value);
        count = 128;
        let code = call!(
            library,
            nvmlDeviceGetSupportedGraphicsClocks(device, highest, &mut count, clocks.as_mut_ptr())
        );
        self.put("nvmlDeviceGetSupportedGraphicsClocks, room for 128", code, Value::Null);
        count = clocks.len() as c_uint;
        let code = call!(
            library,
            nvmlDeviceGetSupportedGraphicsClocks(device, highest + 1, &mut count, clocks.as_mut_ptr())
        );
        self.put("nvmlDeviceGetSupportedGraphicsClocks, no such memory clock", code, Value::Null);
    }

    fn readings(&mut self) {
        let (library, device) = (self.library, self.device);
        let mut number: c_uint = 0;
        let code = call!(library, nvmlDeviceGetPowerUsage(device, &mut number));
        self.put("nvmlDeviceGetPowerUsage", code, Value::Null);
        let mut large: c_ulonglong = 0;
        let code = call!(library, nvmlDeviceGetTotalEnergyConsumption(device, &mut large));
        self.put("nvmlDeviceGetTotalEnergyConsumption", code, Value::Null);
        let code = call!(library, nvmlDeviceGetCurrentClocksThrottleReasons(device, &mut large));
        self.put("nvmlDeviceGetCurrentClocksThrottleReasons", code, Value::Null);
        let code = call!(library, nvmlDeviceGetTemperature(device, 0, &mut number));
        self.put("nvmlDeviceGetTemperature", code, Value::Null);
        let code = call!(library, nvmlDeviceGetPerformanceState(device, &mut number));
        self.put("nvmlDeviceGetPerformanceState", code, Value::Null);
        let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
        let code = call!(library, nvmlDeviceGetUtilizationRates(device, &mut rates));
        self.put("nvmlDeviceGetUtilizationRates", code, Value::Null);
        let mut processes = Vec::with_capacity(64);
        number = 64;
        let code = call!(
            library,
            nvmlDeviceGetComputeRunningProcesses_v3(device, &mut number, processes.as_mut_ptr())
        );
        self.put("nvmlDeviceGetComputeRunningProcesses_v3", code, Value::Null);
        for (name, field) in [
            ("ECC_DBE_VOL_TOTAL", sys::field_id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
            ("ECC_DBE_AGG_TOTAL", sys::field_id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
            ("REMAPPED_PENDING", sys::field_id::NVML_FI_DEV_REMAPPED_PENDING),
            ("REMAPPED_FAILURE", sys::field_id::NVML_FI_DEV_REMAPPED_FAILURE),
            ("RETIRED_PENDING", sys::field_id::NVML_FI_DEV_RETIRED_PENDING),
        ] {
            // SAFETY: a struct of numbers, for which 0 is a value.
            let mut value: sys::nvmlFieldValue_t = unsafe { std::mem::zeroed() };
            value.fieldId = field;
            let code = call!(library, nvmlDeviceGetFieldValues(device, 1, &mut value));
            self.put(format!("nvmlDeviceGetFieldValues {name}"), code, json!({"code": value.nvmlReturn}));
        }
    }

    /// Calls that a client should not make, or whose answer is that there is nothing.
    fn mistakes(&mut self) {
        let (library, device) = (self.library, self.device);
        let mut name = [0; 96];
        let code = call!(library, nvmlDeviceGetName(device, name.as_mut_ptr(), 2));
        self.put("nvmlDeviceGetName, room for 2", code, Value::Null);
        let code = call!(library, nvmlDeviceGetUUID(device, name.as_mut_ptr(), 2));
        self.put("nvmlDeviceGetUUID, room for 2", code, Value::Null);
        let mut other: nvmlDevice_t = std::ptr::null_mut();
        let code = call!(library, nvmlDeviceGetHandleByIndex_v2(1000, &mut other));
        self.put("nvmlDeviceGetHandleByIndex_v2, too high", code, Value::Null);
        let unknown = CString::new("GPU-00000000-0000-0000-0000-000000000000").expect("no 0 in it");
        let code = call!(library, nvmlDeviceGetHandleByUUID(unknown.as_ptr(), &mut other));
        self.put("nvmlDeviceGetHandleByUUID, unknown", code, Value::Null);
        let nonsense = CString::new("nonsense").expect("no 0 in it");
        let code = call!(library, nvmlDeviceGetHandleByUUID(nonsense.as_ptr(), &mut other));
        self.put("nvmlDeviceGetHandleByUUID, nonsense", code, Value::Null);
        let code = call!(library, nvmlDeviceGetPowerUsage(device, std::ptr::null_mut()));
        self.put("nvmlDeviceGetPowerUsage, nowhere", code, Value::Null);

        let mut set: sys::nvmlEventSet_t = std::ptr::null_mut();
        let code = call!(library, nvmlEventSetCreate(&mut set));
        self.put("nvmlEventSetCreate", code, Value::Null);
        let xid = sys::nvmlEventTypeXidCriticalError as c_ulonglong;
        let code = call!(library, nvmlDeviceRegisterEvents(device, 1 << 40, set));
        self.put("nvmlDeviceRegisterEvents, no such event", code, Value::Null);
        let code = call!(library, nvmlDeviceRegisterEvents(device, xid, set));
        self.put("nvmlDeviceRegisterEvents, Xid", code, Value::Null);
        // SAFETY: a struct of numbers and a handle, for which 0 is a value.
        let mut event: sys::nvmlEventData_t = unsafe { std::mem::zeroed() };
        let code = call!(library, nvmlEventSetWait_v2(set, &mut event, 10));
        self.put("nvmlEventSetWait_v2, nothing happens", code, Value::Null);
        let code = call!(library, nvmlEventSetFree(set));
        self.put("nvmlEventSetFree", code, Value::Null);
        // SAFETY: the text that the library returns is its own and has a final 0.
        let spoken = library.nvmlErrorString.as_ref().map(|of| unsafe { CStr::from_ptr(of(3)) });
        let spoken = spoken.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        self.put("nvmlErrorString 3", 0, spoken.into());
    }
}

/// Answers of each GPU that a library shows; the code of its initialisation where that fails.
fn read(path: &Path) -> Result<Vec<Recording>, String> {
    // SAFETY: loading runs the library's initialisers, which is what any client of NVML does.
    let library = unsafe { NvmlLib::new(path) }.map_err(|error| error.to_string())?;
    match call!(library, nvmlInit_v2()) {
        sys::nvmlReturn_enum_NVML_SUCCESS => {}
        code => return Err(format!("nvmlInit_v2 returned {code}")),
    }
    let (mut driver, mut cuda, mut count) = ([0; 96], 0, 0);
    call!(library, nvmlSystemGetDriverVersion(driver.as_mut_ptr(), 96));
    call!(library, nvmlSystemGetCudaDriverVersion_v2(&mut cuda));
    call!(library, nvmlDeviceGetCount_v2(&mut count));
    let read = |index| {
        let mut device: nvmlDevice_t = std::ptr::null_mut();
        let code = call!(library, nvmlDeviceGetHandleByIndex_v2(index, &mut device));
        let mut reader = Reader { library: &library, device, calls: BTreeMap::new() };
        reader.put("nvmlDeviceGetHandleByIndex_v2", code, Value::Null);
        reader.all();
        Recording { driver: text(&driver), cuda, calls: reader.calls }
    };
    let all = (0..count).map(read).collect();
    call!(library, nvmlShutdown());
    Ok(all)
}

/// Recordings in the tree, by the name of their file.
fn recordings() -> BTreeMap<String, Recording> {
    let files = fs::read_dir(RECORDINGS).expect("the folder of recordings");
    let paths = files.map(|file| file.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| {
            let recording = serde_json::from_slice(&fs::read(&path).expect("readable")).expect("a recording");
            (path.file_stem().expect("a name").to_string_lossy().into_owned(), recording)
        })
        .collect()
}

impl Recording {
    fn product(&self) -> &str {
        self.calls["nvmlDeviceGetName"].value.as_str().expect("a product has a name")
    }

    fn memory_mib(&self) -> u64 {
        self.calls["nvmlDeviceGetMemoryInfo"].value.as_u64().expect("a board has memory")
    }
}

#[test]
fn simulated_boards_answer_as_real_ones_did() {
    // Given simulated boards of the recorded products
    let recordings = recordings();
    assert!(!recordings.is_empty());
    let board = |(index, recording): (usize, &Recording)| {
        let product = recording.product().replace(' ', "-");
        let gpu = GpuSpec::of_product(&product, &format!("GPU-{index}"), recording.memory_mib());
        // A label's hyphens do not say which of them are spaces.
        GpuSpec { product: recording.product().to_owned(), ..gpu }
    };
    let gpus = recordings.values().enumerate().map(board).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let spec = folder.path().join("node.json");
    Spec { gpus, ..Spec::of(&[]) }.write(&spec).expect("the spec is written");
    // SAFETY: no other thread of this program reads the environment yet: its tests do not before this.
    unsafe { std::env::set_var(ENV_SPEC, &spec) };

    // When the same calls are made
    let here = std::env::current_exe().expect("a test has a path");
    let simulated = read(&here.with_file_name("libnvidia_ml.so")).expect("the simulated library loads");

    // Then the answers are those of the recordings
    assert_eq!(simulated.len(), recordings.len());
    let mut differ = Vec::new();
    for ((name, recording), simulated) in recordings.iter().zip(&simulated) {
        for (call, answer) in &recording.calls {
            let ours = &simulated.calls[call];
            if ours != answer {
                differ.push(format!("{name}: {call}: recorded {answer:?}, simulated {ours:?}"));
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
#[ignore = "writes a recording of this machine's GPUs: make long WHAT=hardware"]
fn a_recording_of_this_machine() {
    let folder = std::env::var_os(RECORD).map_or_else(|| RECORDINGS.into(), PathBuf::from);
    let all = match read(Path::new("libnvidia-ml.so.1")) {
        Ok(all) => all,
        Err(error) => return println!("no GPU here ({error}): nothing was recorded"),
    };
    for recording in all {
        let name = recording.product().replace(' ', "-").to_lowercase();
        let path = folder.join(name).with_extension("json");
        let text = serde_json::to_string_pretty(&recording).expect("JSON") + "\n";
        fs::write(&path, text).expect("the recording can be written");
        println!("{}", path.display());
    }
}
