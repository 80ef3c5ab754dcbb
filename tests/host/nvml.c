/* An NVML of two cards, as nvidia-ml-py calls it: card 1 tells of no errors, process 42 works on card 0. */
#include <stdio.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

static int cards[2] = {0, 1};
static int told;

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct event { int *card; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
struct sample { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; };

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == TIMEOUT ? "Timeout" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "550.54.15"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **card) { *card = &cards[index]; return OK; }
int nvmlDeviceGetMinorNumber(int *card, unsigned *minor) { *minor = *card; return OK; }
int nvmlDeviceGetName(int *card, char *text, unsigned size) { (void)card; snprintf(text, size, "NVIDIA H100"); return OK; }
int nvmlDeviceGetUUID(int *card, char *text, unsigned size) { snprintf(text, size, "GPU-%d", *card); return OK; }

int nvmlDeviceGetPciInfo_v3(int *card, struct pci *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 26 + *card);
    return OK;
}

int nvmlDeviceGetMemoryInfo(int *card, struct memory *memory) {
    (void)card;
    memory->total = 80ULL << 30;
    memory->free = memory->total;
    memory->used = 0;
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = &told; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(int *card, unsigned long long types, void *set) {
    (void)types, (void)set;
    return *card ? NOT_SUPPORTED : OK;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    if (told++)
        return TIMEOUT;
    memset(event, 0, sizeof *event);
    event->card = &cards[0];
    event->data = 79;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(int *card, unsigned *count, struct process *found) {
    if (*card) {
        *count = 0;
        return OK;
    }
    unsigned room = *count;
    *count = 1;
    if (!found || !room)
        return INSUFFICIENT_SIZE;
    found[0] = (struct process){42, 1ULL << 30, 0, 0};
    return OK;
}

int nvmlDeviceGetProcessUtilization(int *card, struct sample *found, unsigned *count, unsigned long long since_us) {
    (void)card, (void)since_us;
    *count = 1;
    if (!found)
        return INSUFFICIENT_SIZE;
    found[0] = (struct sample){42, 7, 60, 0, 0, 0};
    return OK;
}
