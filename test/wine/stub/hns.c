// The libraries by which Windows programs reach the Host Networking Service, for
// Wine, which has none: every call is sent to the test that runs the program,
// whose address is in SLUICE_TEST_HNS, and the answer is returned. One file serves
// as computenetwork.dll, vmcompute.dll and, as Go asks for random bytes there,
// bcryptprimitives.dll.
//
// A request is the name of the function and five texts: the handle, the ID, and
// three of the function's own. An answer is a result code, a handle and two texts:
// what was asked for, and what is told about an error. Numbers have 32 bits; a
// text is its length and UTF-8; the length ~0 is no text at all.
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <ntsecapi.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>

#define EXPORT __declspec(dllexport)
#define NOT_RUNNING ((HRESULT)0x800706B5) // RPC_S_UNKNOWN_IF
#define NONE UINT32_MAX

static CRITICAL_SECTION lock;
static SOCKET conn = INVALID_SOCKET;

BOOL WINAPI DllMain(HINSTANCE dll, DWORD reason, LPVOID reserved)
{
	if (reason == DLL_PROCESS_ATTACH)
		InitializeCriticalSection(&lock);
	return TRUE;
}

EXPORT BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size)
{
	return RtlGenRandom(data, (ULONG)size);
}

static int dial(void)
{
	WSADATA wsa;
	char address[64], *colon;
	struct sockaddr_in to = { .sin_family = AF_INET };

	if (conn != INVALID_SOCKET)
		return 1;
	if (!GetEnvironmentVariableA("SLUICE_TEST_HNS", address, sizeof address) || !(colon = strchr(address, ':')))
		return 0;
	*colon = 0;
	to.sin_addr.s_addr = inet_addr(address);
	to.sin_port = htons((u_short)atoi(colon + 1));
	WSAStartup(MAKEWORD(2, 2), &wsa);
	conn = socket(AF_INET, SOCK_STREAM, 0);
	if (conn == INVALID_SOCKET || connect(conn, (struct sockaddr *)&to, sizeof to)) {
		closesocket(conn);
		conn = INVALID_SOCKET;
		return 0;
	}
	return 1;
}

// A request is sent in one piece: the parts of one would wait for each other.
struct buffer {
	char *data;
	size_t size;
};

static void put(struct buffer *b, const void *data, size_t size)
{
	b->data = realloc(b->data, b->size + size);
	memcpy(b->data + b->size, data, size);
	b->size += size;
}

static int get(void *data, uint32_t size)
{
	return !size || recv(conn, data, (int)size, MSG_WAITALL) == (int)size;
}

static void put_text(struct buffer *b, const char *text)
{
	uint32_t size = text ? (uint32_t)strlen(text) : NONE;

	put(b, &size, sizeof size);
	if (text)
		put(b, text, size);
}

static void put_wide(struct buffer *b, LPCWSTR wide)
{
	int size = wide ? WideCharToMultiByte(CP_UTF8, 0, wide, -1, NULL, 0, NULL, NULL) : 0;
	char *text = size ? malloc(size) : NULL;

	if (text)
		WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, size, NULL, NULL);
	put_text(b, text);
	free(text);
}

// get_wide reads a text, which the caller of the library frees.
static int get_wide(LPWSTR *wide)
{
	uint32_t size;
	char *text;
	int n;

	if (!get(&size, sizeof size))
		return 0;
	if (size == NONE)
		return 1;
	text = malloc(size + 1);
	if (!get(text, size)) {
		free(text);
		return 0;
	}
	text[size] = 0;
	if (wide) {
		n = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
		*wide = CoTaskMemAlloc(n * sizeof **wide);
		MultiByteToWideChar(CP_UTF8, 0, text, -1, *wide, n);
	}
	free(text);
	return 1;
}

struct request {
	const char *function;
	uint32_t handle;
	const GUID *id;
	LPCWSTR text[3];
};

static void put_request(struct buffer *b, const struct request *r)
{
	char number[16], id[40];
	const GUID *g = r->id;

	snprintf(number, sizeof number, "%u", (unsigned)r->handle);
	if (g)
		snprintf(id, sizeof id, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", g->Data1, g->Data2, g->Data3, g->Data4[0], g->Data4[1],
			 g->Data4[2], g->Data4[3], g->Data4[4], g->Data4[5], g->Data4[6], g->Data4[7]);
	put_text(b, r->function);
	put_text(b, number);
	put_text(b, g ? id : NULL);
	for (int i = 0; i < 3; i++)
		put_wide(b, r->text[i]);
}

static int exchange(const struct request *r, HRESULT *hr, void **handle, LPWSTR *out, LPWSTR *result)
{
	struct buffer b = { 0 };
	uint32_t new_handle;
	int sent;

	put_request(&b, r);
	sent = dial() && send(conn, b.data, (int)b.size, 0) == (int)b.size;
	free(b.data);
	if (!sent || !get(hr, sizeof *hr) || !get(&new_handle, sizeof new_handle) || !get_wide(out) || !get_wide(result))
		return 0;
	if (handle)
		*handle = (void *)(uintptr_t)new_handle;
	return 1;
}

// call has a request answered. Without a test there is no service.
static HRESULT call(struct request r, void **handle, LPWSTR *out, LPWSTR *result)
{
	HRESULT hr;

	if (out)
		*out = NULL;
	if (result)
		*result = NULL;
	EnterCriticalSection(&lock);
	if (!exchange(&r, &hr, handle, out, result)) {
		closesocket(conn);
		conn = INVALID_SOCKET;
		hr = NOT_RUNNING;
	}
	LeaveCriticalSection(&lock);
	return hr;
}

#define NUMBER(handle) ((uint32_t)(uintptr_t)(handle))

#define ENUMERATE(name) \
	EXPORT HRESULT WINAPI name(LPCWSTR query, LPWSTR *all, LPWSTR *result) \
	{ return call((struct request){ #name, 0, NULL, { query } }, NULL, all, result); }
#define CREATE(name) \
	EXPORT HRESULT WINAPI name(const GUID *id, LPCWSTR settings, void **made, LPWSTR *result) \
	{ return call((struct request){ #name, 0, id, { settings } }, made, NULL, result); }
#define OPEN(name) \
	EXPORT HRESULT WINAPI name(const GUID *id, void **opened, LPWSTR *result) \
	{ return call((struct request){ #name, 0, id, { 0 } }, opened, NULL, result); }
#define MODIFY(name) \
	EXPORT HRESULT WINAPI name(void *handle, LPCWSTR settings, LPWSTR *result) \
	{ return call((struct request){ #name, NUMBER(handle), NULL, { settings } }, NULL, NULL, result); }
#define QUERY(name) \
	EXPORT HRESULT WINAPI name(void *handle, LPCWSTR query, LPWSTR *properties, LPWSTR *result) \
	{ return call((struct request){ #name, NUMBER(handle), NULL, { query } }, NULL, properties, result); }
#define DELETE_(name) \
	EXPORT HRESULT WINAPI name(const GUID *id, LPWSTR *result) \
	{ return call((struct request){ #name, 0, id, { 0 } }, NULL, NULL, result); }
#define CLOSE(name) \
	EXPORT HRESULT WINAPI name(void *handle) \
	{ return call((struct request){ #name, NUMBER(handle), NULL, { 0 } }, NULL, NULL, NULL); }

#define OBJECT(one, many) \
	ENUMERATE(HcnEnumerate##many) OPEN(HcnOpen##one) MODIFY(HcnModify##one) \
	QUERY(HcnQuery##one##Properties) DELETE_(HcnDelete##one) CLOSE(HcnClose##one)

OBJECT(Network, Networks)
CREATE(HcnCreateNetwork)
OBJECT(Endpoint, Endpoints)
OBJECT(Namespace, Namespaces)
CREATE(HcnCreateNamespace)
OBJECT(LoadBalancer, LoadBalancers)
CREATE(HcnCreateLoadBalancer)
OBJECT(SdnRoute, SdnRoutes)
CREATE(HcnCreateSdnRoute)

EXPORT HRESULT WINAPI HcnCreateEndpoint(void *network, const GUID *id, LPCWSTR settings, void **made, LPWSTR *result)
{
	return call((struct request){ "HcnCreateEndpoint", NUMBER(network), id, { settings } }, made, NULL, result);
}

EXPORT HRESULT WINAPI HNSCall(LPCWSTR method, LPCWSTR path, LPCWSTR object, LPWSTR *response)
{
	return call((struct request){ "HNSCall", 0, NULL, { method, path, object } }, NULL, response, NULL);
}
