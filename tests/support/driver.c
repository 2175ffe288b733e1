/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU: two GPUs, one MIG instance of the second, values
 * as nvidia-smi prints them on an H200. It has the functions of a driver before 535 (no EventReasons), counts no corrected errors,
 * and hangs in nvmlDeviceGetPowerUsage if HANG is defined. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { int number; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { Device *device; unsigned long long kind, data; unsigned gi, ci; } Event;
typedef struct { unsigned field, scope; long long at, latency; int kind, code; unsigned long long value; } Field;

static Device devices[3] = {{0}, {1}, {2}};
static const char *uuids[3] = {"GPU-1b2c", "GPU-1bff", "MIG-77aa"};
static unsigned long long energy = 9000000;
static int events;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

int nvmlInit_v2(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index > 1) return INVALID;
    *device = &devices[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    for (int i = 0; i < 3; i++) if (!strcmp(uuid, uuids[i])) { *device = &devices[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *part, Device **whole) {
    if (part->number != 2) return INVALID;
    *whole = &devices[1];
    return OK;
}
int nvmlDeviceGetUUID(Device *device, char *text, unsigned length) { strncpy(text, uuids[device->number], length); return OK; }
int nvmlDeviceGetName(Device *device, char *text, unsigned length) { strncpy(text, "NVIDIA H200", length); return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) { *mw = 700000; return OK; }
int nvmlDeviceGetMaxClockInfo(Device *device, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : 3201; return OK; }
int nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1755 : 3201; return OK; }
int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) {
#ifdef HANG
    for (;;) pause();
#endif
    *mw = 654321;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *mj) { *mj = energy += 650000; return OK; }
int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    if (device->number == 2) return NOT_SUPPORTED;
    rates->gpu = 97; rates->memory = 61;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    memory->total = 150754820096ULL; memory->used = 81604378624ULL; memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) { *celsius = 58 + device->number; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) { *bits = 0x4; return OK; }
int nvmlDeviceGetTotalEccErrors(Device *device, int kind, int counter, unsigned long long *count) {
    if (kind == 0 || counter != 0) return NOT_SUPPORTED;
    *count = 1 + device->number;
    return OK;
}
int nvmlDeviceGetPcieReplayCounter(Device *device, unsigned *count) { *count = 12; return OK; }
int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].field == 59 ? NOT_SUPPORTED : OK;
        fields[i].kind = 1;
        fields[i].value = 0xDEAD00000000ULL + i; /* only the lower half of the union is of an unsigned int */
    }
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = &events; return OK; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long kinds, void *set) { return kinds == 8 ? OK : INVALID; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned ms) {
    if (events++) return TIMEOUT;
    event->device = &devices[1]; event->kind = 8; event->data = 63;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    processes[0].pid = getpid();
    processes[1].pid = atoi(getenv("STRANGER") ? getenv("STRANGER") : "1");
    *count = device->number == 0 ? 2 : 1;
    return OK;
}
