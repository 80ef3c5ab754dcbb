// instead of github.com/NVIDIA/go-nvml pkg/nvml
package nvml

// Stands in for a library in C: a driver that knows the GPUs that a question gives.

type (
	Return    int
	Device    struct{ gpu *GPU }
	EventSet  struct{}
	Memory    struct{ Total uint64 }
	PciInfo   struct{ BusIdLegacy [16]int8 }
	EventData struct {
		Device               Device
		EventType, EventData uint64
		GpuInstanceId        uint32
		ComputeInstanceId    uint32
	}
	ProcessInfo struct {
		Pid           uint32
		UsedGpuMemory uint64
	}
	ProcessUtilizationSample struct{ Pid, SmUtil uint32 }
)

// GPU is a card of the driver.
type GPU struct {
	Name      string
	Minor     int
	Processes []ProcessInfo
	Samples   []ProcessUtilizationSample
}

// Known are the cards.
var Known []*GPU

const (
	SUCCESS                 Return = 0
	ERROR_NOT_SUPPORTED     Return = 3
	ERROR_LIBRARY_NOT_FOUND Return = 12

	EventTypeXidCriticalError = 8
)

// HandleOf is what the driver gives for a card.
func HandleOf(gpu *GPU) Device { return Device{gpu} }

func Init() Return                                                   { return ERROR_LIBRARY_NOT_FOUND }
func Shutdown() Return                                               { return SUCCESS }
func ErrorString(Return) string                                      { return "" }
func SystemGetDriverVersion() (string, Return)                       { return "470", SUCCESS }
func DeviceGetCount() (int, Return)                                  { return len(Known), SUCCESS }
func DeviceGetHandleByIndex(index int) (Device, Return)              { return Device{Known[index]}, SUCCESS }
func DeviceGetHandleByPciBusId(string) (Device, Return)              { return Device{}, ERROR_NOT_SUPPORTED }
func DeviceRegisterEvents(Device, uint64, EventSet) Return           { return ERROR_NOT_SUPPORTED }
func EventSetCreate() (EventSet, Return)                             { return EventSet{}, SUCCESS }
func (EventSet) Free() Return                                        { return SUCCESS }
func (EventSet) Wait(uint32) (EventData, Return)                     { return EventData{}, ERROR_NOT_SUPPORTED }
func (d Device) GetName() (string, Return)                           { return d.gpu.Name, SUCCESS }
func (d Device) GetUUID() (string, Return)                           { return "", SUCCESS }
func (d Device) GetIndex() (int, Return)                             { return d.gpu.Minor, SUCCESS }
func (d Device) GetMinorNumber() (int, Return)                       { return d.gpu.Minor, SUCCESS }
func (d Device) GetMemoryInfo() (Memory, Return)                     { return Memory{}, SUCCESS }
func (d Device) GetPciInfo() (PciInfo, Return)                       { return PciInfo{}, SUCCESS }
func (d Device) GetComputeRunningProcesses() ([]ProcessInfo, Return) { return d.gpu.Processes, SUCCESS }
func (d Device) GetProcessUtilization(uint64) ([]ProcessUtilizationSample, Return) {
	return d.gpu.Samples, SUCCESS
}
