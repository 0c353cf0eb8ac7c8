// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
//
// Programs attached to the sockets of a cgroup. They translate a connection to a
// Service into one to an endpoint, where the nftables rules would give exactly the same
// result. When in doubt they leave a socket alone, and the rules translate its packets.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define AF_INET 2
#define AF_INET6 10
#define TCP 6
#define UDP 17

// The fields of kernel structures that the programs read.
struct nf_hook_entry {
	void *priv;
} __attribute__((preserve_access_index));

struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[];
} __attribute__((preserve_access_index));

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[5];
	struct nf_hook_entries *hooks_ipv6[5];
} __attribute__((preserve_access_index));

struct net {
	__u64 net_cookie;
	struct netns_nf nf;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct in6_addr {
	__u32 words[4];
};

typedef struct {
	__s64 counter;
} __attribute__((preserve_access_index)) atomic64_t;

struct sock_common {
	unsigned short skc_family;
	unsigned char skc_state;
	unsigned long skc_flags;
	__be32 skc_rcv_saddr;
	possible_net_t skc_net;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

enum sock_flags { SOCK_DONE = 1 };

struct sock {
	struct sock_common __sk_common;
	unsigned char sk_kern_sock : 1;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u64 bytes_acked, bytes_received;
	__u32 segs_in, segs_out;
	__u32 snd_nxt, write_seq;
	__u8 bpf_sock_ops_cb_flags;
} __attribute__((preserve_access_index));

struct bpf_sock_addr_kern {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *) __ksym;
extern void *bpf_rdonly_cast(void *, __u32) __ksym;

// The netfilter hooks that packets sent by a namespace's own sockets pass.
#define LOCAL_OUT 3
#define POST_ROUTING 4

// An address of either family; IPv4 is mapped (::ffff:a.b.c.d).
struct addr {
	__u32 words[4];
};

struct addr_port {
	struct addr addr;
	__be16 port;
};

// Keys and values of maps consist of whole words, without padding: checksums and lookups
// read every byte. The daemon has the same layouts in layout_linux.go.

struct frontend {
	struct addr addr; // zero for a NodePort
	__be16 port;
	__u8 protocol;
	__u8 nodeport; // 0, or for a NodePort the IP version, 4 or 6
};

// Origins: who the client is, as policy distinguishes it.
enum { ELSEWHERE, OUR_POD, THIS_NODE, ORIGINS };

// Actions for connections of an origin; 0 leaves them to the rules.
enum { TRANSLATE = 1, LOCAL_LIST = 2 };

struct service {
	__u32 row;
	__u32 cluster, local; // lengths of the lists of endpoints
	__u8 actions[4];      // by origin
	__u32 check;	      // checksum over key and value; see matches
};

struct slot {
	__u32 row;
	__u32 number; // with LOCAL_BIT for the Local list
};

#define LOCAL_BIT (1u << 31)

// Flags of endpoints: it may be on this node, and so have one of the node's addresses; its
// address is within the CIDRs of Services.
enum { MAY_BE_LOCAL = 1, IN_SERVICE_RANGE = 2 };

struct endpoint {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 check;
};

// A draining endpoint: it gets no new connections, but UDP sockets that have it keep it.
struct member {
	__u32 row;
	struct addr addr;
	__be16 port;
	__u16 unused;
};

// Flags of the node's addresses.
enum { TAKES_NODEPORTS = 1, POD_RANGE = 2, LOOPBACK = 4 };

struct netns_key {
	__u64 cookie;
	__u32 family;
	__u32 unused;
};

// What the daemon has learnt about a network namespace. Times are those of
// CLOCK_MONOTONIC, in nanoseconds.
struct netns_info {
	__u64 cookie;
	__u64 until; // when to ask again
	struct addr source;
	__u32 origin; // UNKNOWN: its sockets are left alone
	__u32 check;
};

#define UNKNOWN ORIGINS

// How long to wait for the daemon's answer about a namespace before asking again, in ns.
#define ASK_INTERVAL 50000000ULL

// How long unconnected UDP sockets keep their endpoints after the lease has expired, in ns.
// Meanwhile a restarted daemon can update the maps; if none starts, the rules take over.
#define PAIR_GRACE 60000000000ULL

struct settings {
	__u64 node;  // cookie of the node's network namespace
	__u64 until; // end of the lease, after which all new connections are left alone; 0: disabled
	__u32 flags;
	__u32 unused;
};

// Flags of the settings.
enum { COUNT_BYTES = 1, CUTTING = 2 };

// A translation of a socket.
struct pair {
	struct addr_port frontend;
	struct addr_port endpoint;
	__u32 row;
	__u32 number;	  // of the slot
	__u64 generation; // in which the pair was last found to be served
};

// What connections are counted by.
struct connections_key {
	struct addr frontend, endpoint;
	__be16 frontend_port, endpoint_port;
	__u32 protocol;
};

// A number of connections that is not in the map connections yet.
struct recent_count {
	struct connections_key key;
	__u64 word; // low half: the number; high half: the tag of the key
	__u64 unused[2]; // to fill a cache line
};

// The word of a recent_count that a program is changing. Tags are not 0.
#define BUSY 1

// Connections, and what they carried without headers.
struct traffic_counts {
	__u64 connections;
	__u64 bytes[2], packets[2]; // by direction
};

enum { TO_ENDPOINT, TO_CLIENT };

// A TCP socket that was translated. The kernel counts what it carries; that is read from
// the kernel's socket while that exists, and added to the map connections when it ends.
// It may end later than it is closed, since written data may still be in flight.
struct tcp_socket {
	struct pair pair;
	__u64 sk;    // address of the kernel's socket; valid only while that has the same cookie
	__u32 first; // initial sequence number
	__u32 state;
};

// State of a TCP socket: its bytes are counted; it was closed; it has ended, and its counts
// are in the map connections.
enum { METERED = 1, RELEASED = 2, ENDED = 4 };

#define PAIRS 4

struct udp_pairs {
	__u32 used;
	__u32 connected;  // the socket is connected to the endpoint of the first pair
	__u32 busy;	  // a thread is adding a pair
	__u32 rules_only; // no more pairs are added: the rules translate other datagrams
	struct pair pairs[PAIRS];
};

// Programs cache what they find in the maps. A cached value is valid for as long as the
// maps have the generation it was found in.

// What to do with connections of a namespace's unbound sockets to an address and port.
struct decision {
	__u64 netns;	    // cookie of the namespace
	struct frontend to; // nodeport is 0, whatever the frontend is
	__u32 row;
	struct addr source; // of the sockets, if the namespace is a pod's
	__u64 generation;
	__u64 until; // valid until this time
	__u32 n;     // how many slots to choose from; 0: leave the sockets alone
	__u32 first; // number of the first slot
	__u64 check;
};

// The endpoint of a slot, if the rules would not translate packets to the endpoint itself.
struct target {
	struct slot slot;
	__u64 generation;
	struct addr_port endpoint;
	__u32 unused;
	__u64 check;
};

enum { TRANSLATED_TCP, TRANSLATED_UDP, ASKED, CUT, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct frontend);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct slot);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 17);
	__type(key, struct member);
	__type(value, __u32);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct addr);
	__type(value, __u32);
} node_addrs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct netns_key);
	__type(value, struct netns_info);
} spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

// The generation of the contents of services, endpoints, members, node_addrs and settings.
// It is 0 while the daemon writes to one of them, and has a value never used before
// afterwards. For spaces only removing all entries makes a new generation: a single entry
// has an expiry time.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} generation SEC(".maps");

// Caches: a value has one place, given by its hash, and replaces what was there.
#define DECISIONS (1 << 13)
#define TARGETS (1 << 14)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DECISIONS);
	__type(key, __u32);
	__type(value, struct decision);
} decisions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

// How many connections there were, and what those carried that have ended. When full, the
// least recently used entry is evicted.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct connections_key);
	__type(value, struct traffic_counts);
} connections SEC(".maps");

// Connections to the frontends and endpoints that are used most. A pair has one place,
// given by its hash. Counting in the map connections takes several times as long. The
// program flush adds the counts to that map, before the daemon reads it.
#define RECENT (1 << 12)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT);
	__type(key, __u32);
	__type(value, struct recent_count);
} recent SEC(".maps");

// Translated sockets, by cookie, for as long as they are open: a set-associative table.
// Cookies are never reused, and consecutive ones share a set, so nothing needs to be
// hashed, locked or allocated, and lookups stay in the cache. A socket whose set is full is
// left alone. Storage in the socket itself (SK_STORAGE) would cost more than everything
// else here together.
#define WAYS 4
#define TCP_SETS (1 << 15)
#define UDP_SETS (1 << 13)

struct tcp_set {
	__u64 cookies[WAYS]; // 0 if the way is free
	struct tcp_socket sockets[WAYS];
};

struct udp_set {
	__u64 cookies[WAYS];
	struct udp_pairs sockets[WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TCP_SETS);
	__type(key, __u32);
	__type(value, struct tcp_set);
} tcp_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UDP_SETS);
	__type(key, __u32);
	__type(value, struct udp_set);
} udp_sockets SEC(".maps");

// Sockets of namespaces that the daemon was asked about. Once they are connected, their
// source address is that of the namespace. The value is 1 until the daemon has read it.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} asked_sockets SEC(".maps");

// Wakes the daemon when there are new entries in asked_sockets. Records are cookies of
// namespaces.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} questions SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &what);
	if (n)
		*n += 1;
}

static __always_inline __u32 mix(__u32 sum, const __u32 *words, int n)
{
#pragma unroll
	for (int i = 0; i < n; i++) {
		sum = (sum ^ words[i]) * 0x9e3779b1u;
		sum ^= sum >> 15;
	}
	return sum;
}

#define check_of(key, value) \
	mix(mix(1, (const __u32 *)(key), sizeof(*(key)) / 4), (const __u32 *)(value), __builtin_offsetof(typeof(*(value)), check) / 4)

// matches reports whether a value, as read, belongs to the key: the kernel may reuse the
// memory of an entry for another one while a program reads it.
#define matches(key, value) ((value)->check == check_of(key, value))

// weighted_sum returns the sum of the words, each multiplied by a factor that depends on
// its position. Unlike in mix, the multiplications do not depend on each other.
static __always_inline __u64 weighted_sum(__u64 secret, const __u64 *words, int n)
{
	__u64 total = 0;

#pragma unroll
	for (int i = 0; i < n; i++)
		total += (words[i] ^ secret) * (0x9e3779b97f4a7c15ULL * (2 * i + 1));
	return total;
}

// cache_check is the checksum of a cached value, which detects that two CPUs have written
// to one place at the same time. Pods do not know the generation, so they cannot choose
// addresses and ports for which a mix of two values has the right checksum.
#define cache_check(value) weighted_sum((value)->generation, (const __u64 *)(value), __builtin_offsetof(typeof(*(value)), check) / 8)

static __always_inline int is_v4(const struct addr *a)
{
	return a->words[0] == 0 && a->words[1] == 0 && a->words[2] == bpf_htonl(0xffff);
}

static __always_inline int is_zero(const struct addr *a)
{
	return !(a->words[0] | a->words[1] | a->words[2] | a->words[3]);
}

static __always_inline int same_addr(const struct addr *a, const struct addr *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] && a->words[3] == b->words[3];
}

static __always_inline int same_connections_key(const struct connections_key *a, const struct connections_key *b)
{
	return a->protocol == b->protocol && a->frontend_port == b->frontend_port && a->endpoint_port == b->endpoint_port &&
	       same_addr(&a->frontend, &b->frontend) && same_addr(&a->endpoint, &b->endpoint);
}

static __always_inline int same_addr_port(const struct addr_port *a, const struct addr_port *b)
{
	return a->port == b->port && same_addr(&a->addr, &b->addr);
}

static __always_inline void set_v4(struct addr *a, __u32 ip)
{
	a->words[0] = a->words[1] = 0;
	a->words[2] = bpf_htonl(0xffff);
	a->words[3] = ip;
}

static __always_inline void set_connections_key(struct connections_key *key, const struct pair *p, __u32 protocol)
{
	key->frontend = p->frontend.addr;
	key->endpoint = p->endpoint.addr;
	key->frontend_port = p->frontend.port;
	key->endpoint_port = p->endpoint.port;
	key->protocol = protocol;
}

// counts_of returns the counts of a frontend and endpoint, creating them if necessary, or
// null.
static __always_inline struct traffic_counts *counts_of(const struct connections_key *key)
{
	struct traffic_counts none = {}, *c = bpf_map_lookup_elem(&connections, key);

	if (c)
		return c;
	bpf_map_update_elem(&connections, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&connections, key);
}

__noinline int add_connections(const struct connections_key *key, __u32 n)
{
	struct traffic_counts *c = key ? counts_of(key) : 0;

	if (c)
		__sync_fetch_and_add(&c->connections, n);
	return 0;
}

// claim_recent makes a place BUSY and adds its count to the map connections. It returns 0
// if the word has changed, or another program has claimed the place.
static __always_inline int claim_recent(struct recent_count *r, __u64 word)
{
	struct connections_key key;

	if (word == BUSY || __sync_val_compare_and_swap(&r->word, word, BUSY) != word)
		return 0;
	key = r->key;
	if ((__u32)word)
		add_connections(&key, word);
	return 1;
}

// count_connection counts a connection. A place is usually left to the pair that has it,
// because a Service with many endpoints would otherwise replace all pairs all the time.
__noinline int count_connection(const struct pair *p, __u32 protocol)
{
	union {
		struct connections_key key;
		__u64 words[sizeof(struct connections_key) / 8];
	} k;
	struct recent_count *r;
	__u64 hash, tag, word;
	__u32 index;

	if (!p)
		return 0;
	set_connections_key(&k.key, p, protocol);
	hash = weighted_sum(0, k.words, sizeof(k) / 8);
	index = (hash >> 32) % RECENT;
	tag = hash >> 32 | 1;
	r = bpf_map_lookup_elem(&recent, &index);
	if (!r)
		return 0;
	word = r->word;
	if (word >> 32 == tag && (__u32)word != ~0U && same_connections_key(&r->key, &k.key)) {
		// If it fails, another program has counted or claimed the place.
		if (__sync_val_compare_and_swap(&r->word, word, word + 1) == word)
			return 0;
	} else if ((!word || bpf_get_prandom_u32() % 8 == 0) && claim_recent(r, word)) {
		r->key = k.key;
		__sync_lock_test_and_set(&r->word, tag << 32 | 1); // only after the key is complete
		return 0;
	}
	return add_connections(&k.key, 1);
}

// find_frontend looks for the frontend of an address and port. For a NodePort node_addr
// has the flags of the node's address, else it is 0.
static __always_inline int find_frontend(const struct frontend *to, struct service *out, __u32 *node_addr)
{
	struct frontend key = {.port = to->port, .protocol = to->protocol, .nodeport = is_v4(&to->addr) ? 4 : 6};
	struct service *s = bpf_map_lookup_elem(&services, to);
	__u32 *flags;

	if (s) {
		*out = *s;
		// Another program may listen on an address that the node itself has (NodeLocal DNS).
		if (!matches(to, out) || bpf_map_lookup_elem(&node_addrs, &to->addr))
			return 0;
		*node_addr = 0;
		return 1;
	}
	s = bpf_map_lookup_elem(&services, &key);
	if (!s)
		return 0;
	*out = *s;
	if (!matches(&key, out))
		return 0;
	flags = bpf_map_lookup_elem(&node_addrs, &to->addr);
	if (!flags || !(*flags & TAKES_NODEPORTS))
		return 0;
	*node_addr = *flags;
	return 1;
}

// ask_daemon asks the daemon to learn about a namespace, or to check what it knows, from
// one of its sockets.
static __always_inline void ask_daemon(struct bpf_sock *sk, struct netns_key *key, struct netns_info *known, __u64 now)
{
	__u32 *asked;

	known->until = now + ASK_INTERVAL;
	known->check = check_of(key, known);
	bpf_map_update_elem(&spaces, key, known, BPF_ANY);
	asked = bpf_sk_storage_get(&asked_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!asked)
		return;
	*asked = 1;
	count(ASKED);
	bpf_ringbuf_output(&questions, &key->cookie, sizeof(key->cookie), 0);
}

#define MAX_HOOKS 8

// has_rules reports whether a hook has rules: an iptables table, an nftables chain or a BPF
// program, all of which have private data. Hooks of conntrack, SELinux and AppArmor, which
// may be in every namespace, have none.
static __always_inline int has_rules(struct nf_hook_entries *entries)
{
	if (!entries)
		return 0;
	if (entries->num_hook_entries > MAX_HOOKS)
		return 1;
#pragma unroll
	for (int i = 0; i < MAX_HOOKS; i++)
		if (i < entries->num_hook_entries && entries->hooks[i].priv)
			return 1;
	return 0;
}

// has_output_rules reports whether the namespace of a socket has its own rules for packets
// that it sends, as a sidecar has.
static __always_inline int has_output_rules(struct bpf_sock_addr *ctx, int is_ipv4)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct net *net = kern->sk->__sk_common.skc_net.net;

	if (is_ipv4)
		return has_rules(net->nf.hooks_ipv4[LOCAL_OUT]) || has_rules(net->nf.hooks_ipv4[POST_ROUTING]);
	return has_rules(net->nf.hooks_ipv6[LOCAL_OUT]) || has_rules(net->nf.hooks_ipv6[POST_ROUTING]);
}

// pod_origin returns the origin of a socket in a namespace that is not the node's, or
// UNKNOWN; the namespace's source address; and until when that is valid, 0 if it must not
// be cached.
static __always_inline __u32 pod_origin(struct bpf_sock *sk, __u64 cookie, int is_ipv4, const struct addr *bound, int may_ask,
				       struct addr *source, __u64 *until)
{
	struct netns_key key = {.cookie = cookie, .family = is_ipv4 ? 4 : 6};
	struct netns_info *found = bpf_map_lookup_elem(&spaces, &key);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct netns_info known = {.cookie = cookie, .origin = UNKNOWN};

	*until = 0;
	if (found) {
		known = *found;
		if (!matches(&key, &known))
			return UNKNOWN;
	}
	if (known.until < now && may_ask && is_zero(bound))
		ask_daemon(sk, &key, &known, now);
	// Nothing is cached while an answer of the daemon is pending or should be asked for.
	if (known.until > now + ASK_INTERVAL)
		*until = known.until;
	if (known.origin >= THIS_NODE || (!is_zero(bound) && !same_addr(bound, &known.source)))
		return UNKNOWN;
	*source = known.source;
	return known.origin;
}

// client_origin returns the origin of a socket, or UNKNOWN if it must be left alone; the
// source address, if it is a pod's; and until when that is valid.
static __always_inline __u32 client_origin(struct bpf_sock *sk, __u64 cookie, int is_ipv4, const struct addr *bound, __u32 node_addr,
					  int may_ask, struct addr *source, __u64 *until)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	if (!s)
		return UNKNOWN;
	if (cookie != s->node) {
		if (node_addr & LOOPBACK) // the pod's own loopback address
			return UNKNOWN;
		return pod_origin(sk, cookie, is_ipv4, bound, may_ask, source, until);
	}
	// A connection of the node to one of its own addresses has that address as its source.
	if (!is_zero(bound) || node_addr & POD_RANGE)
		return UNKNOWN;
	return THIS_NODE;
}

// handled_by_rules reports whether the rules would translate or drop packets to the
// endpoint itself.
static __always_inline int handled_by_rules(const struct endpoint *e, __u8 protocol)
{
	struct frontend key = {.addr = e->addr, .port = e->port, .protocol = protocol};
	__u32 *flags;

	if (e->flags & IN_SERVICE_RANGE || bpf_map_lookup_elem(&services, &key))
		return 1;
	if (!(e->flags & MAY_BE_LOCAL))
		return 0;
	__builtin_memset(&key.addr, 0, sizeof(key.addr));
	key.nodeport = is_v4(&e->addr) ? 4 : 6;
	if (!bpf_map_lookup_elem(&services, &key))
		return 0;
	flags = bpf_map_lookup_elem(&node_addrs, &e->addr);
	return flags && *flags & TAKES_NODEPORTS;
}

// current_generation returns the generation, with a full barrier. It must be called before
// the maps are read, so that old contents are never cached with a newer generation.
static __always_inline __u64 current_generation(void)
{
	__u32 zero = 0;
	__u64 *g = bpf_map_lookup_elem(&generation, &zero);

	return g ? __sync_fetch_and_add(g, 0) : 0;
}

// is_current reports whether what was found in a generation is still valid: nothing was
// written to the maps since, and nothing is being written.
static __always_inline int is_current(__u64 found)
{
	__u32 zero = 0;
	__u64 *g = bpf_map_lookup_elem(&generation, &zero);

	return g && found && *g == found;
}

// make_decision reads from the maps what to do with a socket that connects to d->to, and
// caches it if the socket is not bound.
__noinline int make_decision(struct bpf_sock_addr *ctx, const struct addr *bound, int may_ask, __u32 index, struct decision *d)
{
	__u32 node_addr, from;
	struct service s;
	__u8 action;

	if (!bound || !d || !ctx->sk)
		return 0;
	d->generation = current_generation();
	d->until = ~0ULL;
	d->n = d->first = 0;
	__builtin_memset(&d->source, 0, sizeof(d->source));
	if (find_frontend(&d->to, &s, &node_addr)) {
		from = client_origin(ctx->sk, d->netns, is_v4(&d->to.addr), bound, node_addr, may_ask, &d->source, &d->until);
		action = from < ORIGINS ? s.actions[from & 3] : 0;
		if (action & TRANSLATE) {
			d->row = s.row;
			d->n = action & LOCAL_LIST ? s.local : s.cluster;
			d->first = action & LOCAL_LIST ? LOCAL_BIT : 0;
		}
	}
	if (is_zero(bound)) {
		d->check = cache_check(d);
		bpf_map_update_elem(&decisions, &index, d, BPF_ANY);
	}
	return 1;
}

// find_decision returns what to do with a socket that connects to an address and port,
// from the cache if possible, in d. It returns 0 on failure.
static __always_inline int find_decision(struct bpf_sock_addr *ctx, const struct addr_port *to, __u8 protocol, __u64 netns,
					 const struct addr *bound, int may_ask, __u64 now, struct decision *d)
{
	const __u32 *words = to->addr.words;
	__u64 hashed[] = {words[0] ^ words[1] ^ words[2] ^ words[3], to->port | (__u64)protocol << 32, netns};
	__u32 index = (weighted_sum(0, hashed, 3) >> 32) % DECISIONS;
	struct decision *cached = bpf_map_lookup_elem(&decisions, &index);

	if (!cached)
		return 0;
	if (is_zero(bound)) {
		*d = *cached;
		if (d->netns == netns && same_addr(&d->to.addr, &to->addr) && d->to.port == to->port && d->to.protocol == protocol &&
		    d->until > now && is_current(d->generation) && d->check == cache_check(d))
			return 1;
	}
	d->netns = netns;
	d->to.addr = to->addr;
	d->to.port = to->port;
	d->to.protocol = protocol;
	return make_decision(ctx, bound, may_ask, index, d);
}

// resolve_target reads the endpoint of a slot from the maps and caches it. It returns 0 if
// there is none, or if the rules would translate or drop packets to it.
__noinline int resolve_target(struct target *t, __u32 protocol, __u32 index)
{
	struct endpoint *found;
	struct endpoint e;
	struct slot slot;

	if (!t)
		return 0;
	slot = t->slot;
	t->generation = current_generation();
	found = bpf_map_lookup_elem(&endpoints, &slot);
	if (!found)
		return 0;
	e = *found;
	if (!matches(&slot, &e) || handled_by_rules(&e, protocol))
		return 0;
	t->endpoint.addr = e.addr;
	t->endpoint.port = e.port;
	t->check = cache_check(t);
	bpf_map_update_elem(&targets, &index, t, BPF_ANY);
	return 1;
}

// find_target returns the endpoint of a slot, from the cache if possible, in t. It returns
// 0 if there is none to use.
static __always_inline int find_target(const struct slot *slot, __u32 protocol, struct target *t)
{
	__u64 hashed[] = {slot->row, slot->number};
	__u32 index = (weighted_sum(0, hashed, 2) >> 32) % TARGETS;
	struct target *cached = bpf_map_lookup_elem(&targets, &index);

	if (!cached)
		return 0;
	*t = *cached;
	if (t->slot.row == slot->row && t->slot.number == slot->number && is_current(t->generation) && t->check == cache_check(t))
		return 1;
	t->slot = *slot;
	return resolve_target(t, protocol, index);
}

// Results of choose_endpoint.
enum { NOTHING, ENDPOINT, ITSELF };

// choose_endpoint chooses an endpoint for a new connection to the frontend of a pair. If a
// pod draws itself the rules must translate, because they masquerade such a connection.
__noinline int choose_endpoint(struct bpf_sock_addr *ctx, __u32 protocol, const struct addr *bound, int may_ask, struct pair *out)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	__u64 now = bpf_ktime_get_coarse_ns(), netns;
	struct bpf_sock *sk = ctx->sk;
	struct decision d = {};
	struct slot slot;
	struct target t;

	// A device or mark of the socket may change how its packets are routed or filtered.
	if (!s || s->until < now || !sk || sk->bound_dev_if || sk->mark || !out || !bound)
		return NOTHING;
	netns = kern->sk->__sk_common.skc_net.net->net_cookie;
	if (!find_decision(ctx, &out->frontend, protocol, netns, bound, may_ask, now, &d) || !d.n)
		return NOTHING;
	if (netns != s->node && has_output_rules(ctx, is_v4(&out->frontend.addr)))
		return NOTHING;
	slot.row = d.row;
	slot.number = d.first | (d.n > 1 ? bpf_get_prandom_u32() % d.n : 0);
	if (!find_target(&slot, protocol, &t))
		return NOTHING;
	if (same_addr(&d.source, &t.endpoint.addr))
		return ITSELF;
	out->endpoint = t.endpoint;
	out->row = slot.row;
	out->number = slot.number;
	out->generation = d.generation == t.generation ? t.generation : 0;
	return ENDPOINT;
}

// slot_holds reports whether the endpoint of a slot is this one.
static __always_inline int slot_holds(struct slot *slot, const struct addr_port *endpoint)
{
	struct endpoint *found = bpf_map_lookup_elem(&endpoints, slot);
	struct endpoint e;

	if (!found)
		return 0;
	e = *found;
	return matches(slot, &e) && e.port == endpoint->port && same_addr(&e.addr, &endpoint->addr);
}

struct slot_search {
	struct pair *pair;
	struct slot slot;
	int found;
};

static int search_slot(__u32 i, struct slot_search *s)
{
	struct endpoint *e;

	s->slot.number = (s->pair->number & LOCAL_BIT) | i;
	e = bpf_map_lookup_elem(&endpoints, &s->slot);
	if (!e)
		return 1; // Slots have no gaps.
	if (e->port == s->pair->endpoint.port && same_addr(&e->addr, &s->pair->endpoint.addr)) {
		s->pair->number = s->slot.number;
		s->found = 1;
		return 1;
	}
	return 0;
}

#define MAX_SLOTS (1 << 16)

// is_served reports whether a pair is still right: its frontend belongs to its row, and its
// endpoint is in a slot of the row, the same or another, or is draining.
__noinline int is_served(struct pair *p)
{
	struct frontend to = {};
	struct service now;
	struct slot slot;
	struct member m = {};
	struct slot_search s = {};
	__u32 flags;

	if (!p)
		return 0;
	to.addr = p->frontend.addr;
	to.port = p->frontend.port;
	to.protocol = UDP;
	if (!find_frontend(&to, &now, &flags) || now.row != p->row)
		return 0;
	slot.row = p->row;
	slot.number = p->number;
	if (slot_holds(&slot, &p->endpoint))
		return 1;
	m.row = p->row;
	m.addr = p->endpoint.addr;
	m.port = p->endpoint.port;
	if (bpf_map_lookup_elem(&members, &m))
		return 1;
	s.pair = p;
	s.slot.row = p->row;
	bpf_loop(MAX_SLOTS, search_slot, &s, 0);
	return s.found;
}

// is_alive reports whether a pair is still served, without reading the maps if they have
// not changed since it was last found to be.
static __always_inline int is_alive(struct pair *p)
{
	__u64 found = p->generation, now;

	if (is_current(found))
		return 1;
	now = current_generation();
	if (!is_served(p))
		return 0;
	__sync_val_compare_and_swap(&p->generation, found, now); // unless another thread has replaced the pair
	return 1;
}

// cookie_of returns a socket's cookie, or 0 if it was not given one yet: then it was never
// translated.
static __always_inline __u64 cookie_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);

	return kern->sk->__sk_common.skc_cookie.counter;
}

// has_release reports whether a program is called when the socket is closed. It is not for
// sockets of the kernel, such as the subflows of an MPTCP connection, where getpeername is
// also called on another socket.
static __always_inline int has_release(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);

	return !BPF_CORE_READ_BITFIELD(kern->sk, sk_kern_sock);
}

static __always_inline __u32 find_way(const __u64 *cookies, __u64 cookie)
{
#pragma unroll
	for (__u32 i = 0; i < WAYS; i++)
		if (cookies[i] == cookie)
			return i;
	return WAYS;
}

// claim_way returns the way of a socket in its set, taking a free one if it has none yet.
// It returns WAYS if the set is full, or if another thread takes one for the same socket.
static __always_inline __u32 claim_way(__u64 *cookies, __u64 cookie)
{
	__u32 at = find_way(cookies, cookie);

	if (at < WAYS)
		return at;
#pragma unroll
	for (__u32 i = 0; i < WAYS; i++) {
		if (at < WAYS || cookies[i] || __sync_val_compare_and_swap(&cookies[i], 0, cookie))
			continue;
		at = i;
	}
	if (at < WAYS && find_way(cookies, cookie) != at) {
		cookies[at & (WAYS - 1)] = 0;
		return WAYS;
	}
	return at;
}

// tcp_socket and udp_socket return the entry of a socket, or null. If make is set they
// create it if there is room.
static __always_inline struct tcp_socket *tcp_socket(__u64 cookie, int make)
{
	__u32 index = cookie / WAYS % TCP_SETS;
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);
	__u32 at;

	if (!set || !cookie)
		return 0;
	at = make ? claim_way(set->cookies, cookie) : find_way(set->cookies, cookie);
	return at < WAYS ? &set->sockets[at & (WAYS - 1)] : 0;
}

static __always_inline struct udp_pairs *udp_socket(__u64 cookie, int make)
{
	__u32 index = cookie / WAYS % UDP_SETS;
	struct udp_set *set = bpf_map_lookup_elem(&udp_sockets, &index);
	__u32 at;

	if (!set || !cookie)
		return 0;
	at = make ? claim_way(set->cookies, cookie) : find_way(set->cookies, cookie);
	return at < WAYS ? &set->sockets[at & (WAYS - 1)] : 0;
}

// forget removes the translations of a socket that connects to something else.
static __always_inline void forget(__u64 cookie, __u32 protocol)
{
	struct udp_pairs *u;
	struct tcp_socket *t;

	if (protocol == TCP) {
		t = tcp_socket(cookie, 0);
		if (t)
			__builtin_memset(t, 0, sizeof(*t));
		return;
	}
	u = udp_socket(cookie, 0);
	if (u)
		u->used = u->connected = u->rules_only = 0;
}

// translate_connect translates the destination of a socket that connects, and replaces
// what was known about it. It returns 1 if *to has changed.
static __always_inline int translate_connect(struct bpf_sock_addr *ctx, struct addr_port *to, const struct addr *bound)
{
	__u32 protocol = ctx->protocol;
	struct pair p = {.frontend = *to};
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct udp_pairs *u;
	struct tcp_socket *t;
	__u64 cookie;

	if (!ctx->sk || (protocol != TCP && protocol != UDP) || !has_release(ctx))
		return 0;
	if (choose_endpoint(ctx, protocol, bound, 1, &p) != ENDPOINT) {
		forget(cookie_of(ctx), protocol);
		return 0;
	}
	cookie = bpf_get_socket_cookie(ctx);
	if (protocol == TCP) {
		t = tcp_socket(cookie, 1);
		if (!t)
			return 0;
		t->state = 0;
		t->pair = p;
		t->sk = (__u64)kern->sk;
		count(TRANSLATED_TCP);
		count_connection(&p, TCP);
	} else {
		u = udp_socket(cookie, 1);
		if (!u)
			return 0;
		u->pairs[0] = p;
		u->used = u->connected = 1;
		count(TRANSLATED_UDP);
		count_connection(&p, UDP);
	}
	*to = p.endpoint;
	return 1;
}

// lease_end returns the end of the lease; 0 means that the maps may be wrong.
static __always_inline __u64 lease_end(void)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s ? s->until : 0;
}

// store_pair stores a pair of a socket at an index, or as a new one if the index is PAIRS.
// It returns 0 if it cannot.
static __always_inline int store_pair(struct udp_pairs *u, __u32 at, const struct pair *p)
{
	// If two frontends had the same endpoint, a reply could be from either of them.
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && i != at && same_addr_port(&u->pairs[i].endpoint, &p->endpoint))
			return 0;
	if (at < PAIRS) {
		u->pairs[at & (PAIRS - 1)] = *p;
		return 1;
	}
	at = u->used;
	if (at >= PAIRS)
		return 0;
	u->pairs[at & (PAIRS - 1)] = *p;
	__sync_fetch_and_add(&u->used, 1); // only after the pair is complete
	return 1;
}

// translate_send translates the destination of a datagram. It is sent to the same endpoint
// as the last one to that frontend, if that is still served. A connected socket accepts
// replies of its peer only, so it always keeps its endpoint; if that is gone, cut drops
// the packet. It returns 1 if *to has changed.
static __always_inline int translate_send(struct bpf_sock_addr *ctx, struct addr_port *to, const struct addr *bound)
{
	struct udp_pairs *u;
	struct pair p = {.frontend = *to};
	__u32 at = PAIRS;
	__u64 until;
	int stored, chosen;

	if (!ctx->sk || ctx->protocol != UDP)
		return 0;
	u = udp_socket(cookie_of(ctx), 0);
	// A connected socket accepts replies of its peer only, so only a datagram to the peer is
	// translated. For a connected IPv6 socket with an IPv4 peer the kernel calls this program
	// for every datagram.
	if (ctx->sk->state == BPF_TCP_ESTABLISHED && !(u && u->used && same_addr_port(&u->pairs[0].frontend, to)))
		return 0;
	if (u) {
		if (u->connected && ctx->sk->state != BPF_TCP_ESTABLISHED)
			u->connected = 0; // No program is called when a socket is disconnected.
#pragma unroll
		for (int i = 0; i < PAIRS; i++)
			if (i < u->used && same_addr_port(&u->pairs[i].frontend, to))
				at = i;
		if (at == 0 && u->connected) {
			*to = u->pairs[0].endpoint;
			return 1;
		}
		until = lease_end();
		if (at < PAIRS && until && until + PAIR_GRACE > bpf_ktime_get_coarse_ns() && is_alive(&u->pairs[at & (PAIRS - 1)])) {
			*to = u->pairs[at & (PAIRS - 1)].endpoint;
			return 1;
		}
	}
	if (u && u->rules_only)
		return 0;
	chosen = choose_endpoint(ctx, UDP, bound, 0, &p);
	if (chosen == NOTHING)
		return 0; // The rules translate, and replies come from the frontend.
	if (!u && has_release(ctx))
		u = udp_socket(bpf_get_socket_cookie(ctx), 1);
	// If servers send to each other from their own ports, what one sends on its own initiative
	// cannot be distinguished from a reply.
	if (u && (chosen == ITSELF || ctx->sk->src_port == bpf_ntohs(p.endpoint.port)))
		u->rules_only = 1; // or its next datagram might go to another endpoint
	if (!u || u->rules_only)
		return 0;
	if (__sync_val_compare_and_swap(&u->busy, 0, 1))
		return 0; // Another thread is adding a pair.
	stored = store_pair(u, at, &p);
	__sync_lock_test_and_set(&u->busy, 0);
	if (!stored)
		return 0;
	*to = p.endpoint;
	count(TRANSLATED_UDP);
	count_connection(&p, UDP);
	return 1;
}

// restore_source translates the source of a reply back to the frontend. It returns 1 if
// *from has changed.
static __always_inline int restore_source(struct bpf_sock_addr *ctx, struct addr_port *from)
{
	struct udp_pairs *u = udp_socket(cookie_of(ctx), 0);

	if (!u)
		return 0;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && same_addr_port(&u->pairs[i].endpoint, from)) {
			*from = u->pairs[i].frontend;
			return 1;
		}
	return 0;
}

// restore_peer translates the peer of a connected socket back to the frontend. It returns
// 1 if *at has changed.
static __always_inline int restore_peer(struct bpf_sock_addr *ctx, struct addr_port *at)
{
	__u64 cookie = cookie_of(ctx);
	struct udp_pairs *u;
	struct tcp_socket *t;

	if (ctx->protocol == TCP) {
		t = tcp_socket(cookie, 0);
		if (!t || !same_addr_port(&t->pair.endpoint, at))
			return 0;
		*at = t->pair.frontend;
		return 1;
	}
	u = udp_socket(cookie, 0);
	if (!u || !u->connected || !same_addr_port(&u->pairs[0].endpoint, at))
		return 0;
	*at = u->pairs[0].frontend;
	return 1;
}

static __always_inline void read4(struct bpf_sock_addr *ctx, struct addr_port *at)
{
	set_v4(&at->addr, ctx->user_ip4);
	at->port = ctx->user_port;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct addr_port *at)
{
	ctx->user_ip4 = at->addr.words[3];
	ctx->user_port = at->port;
}

static __always_inline void read6(struct bpf_sock_addr *ctx, struct addr_port *at)
{
	at->addr.words[0] = ctx->user_ip6[0];
	at->addr.words[1] = ctx->user_ip6[1];
	at->addr.words[2] = ctx->user_ip6[2];
	at->addr.words[3] = ctx->user_ip6[3];
	at->port = ctx->user_port;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct addr_port *at)
{
	ctx->user_ip6[0] = at->addr.words[0];
	ctx->user_ip6[1] = at->addr.words[1];
	ctx->user_ip6[2] = at->addr.words[2];
	ctx->user_ip6[3] = at->addr.words[3];
	ctx->user_port = at->port;
}

// bound4 and bound6 return the address that a socket is bound to; zero if it is not.
static __always_inline void bound4(struct bpf_sock *sk, struct addr *a)
{
	__builtin_memset(a, 0, sizeof(*a));
	if (sk && sk->src_ip4)
		set_v4(a, sk->src_ip4);
}

static __always_inline void bound6(struct bpf_sock *sk, struct addr *a)
{
	__builtin_memset(a, 0, sizeof(*a));
	if (!sk)
		return;
	a->words[0] = sk->src_ip6[0];
	a->words[1] = sk->src_ip6[1];
	a->words[2] = sk->src_ip6[2];
	a->words[3] = sk->src_ip6[3];
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct addr bound;
	struct addr_port to = {};

	read4(ctx, &to);
	bound4(ctx->sk, &bound);
	if (translate_connect(ctx, &to, &bound))
		write4(ctx, &to);
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct addr bound;
	struct addr_port to = {};

	read6(ctx, &to);
	bound6(ctx->sk, &bound);
	if (translate_connect(ctx, &to, &bound))
		write6(ctx, &to);
	return 1;
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct addr bound = {};
	struct addr_port to = {};

	read4(ctx, &to);
	if (ctx->msg_src_ip4)
		set_v4(&bound, ctx->msg_src_ip4);
	if (translate_send(ctx, &to, &bound))
		write4(ctx, &to);
	return 1;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr bound = {};
	struct addr_port to = {};

	read6(ctx, &to);
	bound.words[0] = ctx->msg_src_ip6[0];
	bound.words[1] = ctx->msg_src_ip6[1];
	bound.words[2] = ctx->msg_src_ip6[2];
	bound.words[3] = ctx->msg_src_ip6[3];
	if (translate_send(ctx, &to, &bound))
		write6(ctx, &to);
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	struct addr_port from = {};

	read4(ctx, &from);
	if (restore_source(ctx, &from))
		write4(ctx, &from);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct addr_port from = {};

	read6(ctx, &from);
	if (restore_source(ctx, &from))
		write6(ctx, &from);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct addr_port at = {};

	read4(ctx, &at);
	if (restore_peer(ctx, &at))
		write4(ctx, &at);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct addr_port at = {};

	read6(ctx, &at);
	if (restore_peer(ctx, &at))
		write6(ctx, &at);
	return 1;
}

// has_flag reports whether a flag of the settings is set.
static __always_inline int has_flag(__u32 flag)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s && s->flags & flag;
}

#define kernel_type(type, address) ((type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(type)))

// bytes_sent returns how many bytes a socket has sent, not counting retransmissions. The
// next sequence number has the low 32 bits of that; the high bits follow from bytes_acked,
// which is smaller by what is in flight. SYN and FIN take a sequence number each. The
// socket is not always locked: with this order of reads the result can be too small, but
// not too large.
static __always_inline __u64 bytes_sent(struct sock *sk, struct tcp_sock *tp, __u32 first)
{
	__u8 state = sk->__sk_common.skc_state;
	__u64 n, numbers = 1;
	__u32 next;

	if (state == BPF_TCP_SYN_SENT || state == BPF_TCP_SYN_RECV)
		return 0;
	barrier();
	n = tp->bytes_acked;
	barrier();
	next = tp->snd_nxt;
	barrier();
	n += (__u32)(next - first - (__u32)n);
	state = sk->__sk_common.skc_state;
	if (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_FIN_WAIT2 || state == BPF_TCP_CLOSING || state == BPF_TCP_LAST_ACK)
		numbers += next == tp->write_seq;
	return n > numbers ? n - numbers : 0;
}

// bytes_received returns how many bytes a socket has received. The kernel's count includes
// the FIN.
static __always_inline __u64 bytes_received(struct sock *sk, struct tcp_sock *tp)
{
	__u64 n = tp->bytes_received;

	barrier();
	if (n && sk->__sk_common.skc_flags & 1UL << bpf_core_enum_value(enum sock_flags, SOCK_DONE))
		n--;
	return n;
}

// read_counts reads what a TCP socket has carried so far from the kernel's socket.
static __always_inline void read_counts(const struct tcp_socket *t, struct traffic_counts *out)
{
	struct sock *sk = kernel_type(struct sock, t->sk);
	struct tcp_sock *tp = kernel_type(struct tcp_sock, t->sk);

	out->bytes[TO_ENDPOINT] = bytes_sent(sk, tp, t->first);
	out->bytes[TO_CLIENT] = bytes_received(sk, tp);
	out->packets[TO_ENDPOINT] = tp->segs_out;
	out->packets[TO_CLIENT] = tp->segs_in;
}

static __always_inline void add_counts(const struct pair *p, __u32 protocol, const struct traffic_counts *n)
{
	struct connections_key key;
	struct traffic_counts *c;

	set_connections_key(&key, p, protocol);
	c = counts_of(&key);
	if (!c)
		return;
#pragma unroll
	for (int to = 0; to <= TO_CLIENT; to++) {
		if (!n->packets[to])
			continue;
		__sync_fetch_and_add(&c->bytes[to], n->bytes[to]);
		__sync_fetch_and_add(&c->packets[to], n->packets[to]);
	}
}

// count_ended adds the counts of a socket that has ended to the map connections, unless
// that was done before, and returns the previous state. ENDED is set first, so that a
// reader of the map and then of the sockets counts it at most once.
static __always_inline __u32 count_ended(struct tcp_socket *t)
{
	__u32 was = __sync_fetch_and_or(&t->state, ENDED);
	struct traffic_counts c = {};

	if (was & ENDED || !(was & METERED))
		return was;
	read_counts(t, &c);
	add_counts(&t->pair, TCP, &c);
	return was;
}

// free_way frees the way of a TCP socket.
static __always_inline void free_way(struct tcp_set *set, __u32 at)
{
	__builtin_memset(&set->sockets[at & (WAYS - 1)], 0, sizeof(set->sockets[0]));
	__sync_lock_test_and_set(&set->cookies[at & (WAYS - 1)], 0); // only after the entry is clear
}

// release_tcp is called when a socket is closed. It frees the socket's way, unless its
// bytes are counted and it has not ended yet: then the program ends does.
static __always_inline void release_tcp(__u64 cookie)
{
	__u32 index = cookie / WAYS % TCP_SETS;
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);
	__u32 at = set ? find_way(set->cookies, cookie) : WAYS;
	struct tcp_socket *t;
	__u32 was;

	if (!set || at >= WAYS)
		return;
	t = &set->sockets[at & (WAYS - 1)];
	if (t->state & METERED) {
		was = __sync_fetch_and_or(&t->state, RELEASED);
		if (!(was & ENDED)) {
			// Another program may have cleared the flag, so that no program is called at its end.
			if (has_flag(COUNT_BYTES) && kernel_type(struct tcp_sock, t->sk)->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_STATE_CB_FLAG)
				return;
			if (count_ended(t) & ENDED)
				return;
		}
	}
	free_way(set, at);
}

// ends starts to count the bytes of translated TCP sockets when they connect, and adds what
// they have carried to the map connections when they end.
SEC("sockops")
int ends(struct bpf_sock_ops *ctx)
{
	__u32 op = ctx->op, index, at;
	struct tcp_socket *t;
	struct tcp_set *set;
	__u64 cookie;

	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    !(op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == BPF_TCP_CLOSE))
		return 1;
	cookie = bpf_get_socket_cookie(ctx);
	index = cookie / WAYS % TCP_SETS;
	set = bpf_map_lookup_elem(&tcp_sockets, &index);
	at = set ? find_way(set->cookies, cookie) : WAYS;
	if (!set || at >= WAYS)
		return 1;
	t = &set->sockets[at & (WAYS - 1)];
	if (op == BPF_SOCK_OPS_STATE_CB) {
		if ((count_ended(t) & (RELEASED | ENDED)) == RELEASED)
			free_way(set, at);
		return 1;
	}
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && t->sk && !t->state) {
		t->first = kernel_type(struct tcp_sock, t->sk)->write_seq;
		__sync_fetch_and_or(&t->state, METERED);
	}
	// A program of the pod's own cgroup may have cleared the flag since connect.
	if (t->state & METERED)
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 1;
}

// release forgets a socket that is closed.
SEC("cgroup/sock_release")
int release(struct bpf_sock *ctx)
{
	struct sock *sk = bpf_cast_to_kern_ctx(ctx);
	__u64 cookie = sk->__sk_common.skc_cookie.counter;
	struct udp_pairs *s;
	struct udp_set *u;
	__u32 index, at;

	if (!cookie)
		return 1;

	if (ctx->protocol == TCP) {
		release_tcp(cookie);
	} else if (ctx->protocol == UDP) {
		index = cookie / WAYS % UDP_SETS;
		u = bpf_map_lookup_elem(&udp_sockets, &index);
		at = u ? find_way(u->cookies, cookie) : WAYS;
		if (u && at < WAYS) {
			s = &u->sockets[at & (WAYS - 1)];
			s->used = s->connected = s->rules_only = 0;
			__sync_lock_test_and_set(&u->cookies[at & (WAYS - 1)], 0);
		}
	}
	return 1;
}

// endpoint_gone reports whether a UDP socket is connected to an endpoint that is gone.
static __always_inline int endpoint_gone(const struct udp_pairs *u)
{
	struct pair p;

	if (!u->connected)
		return 0;
	p = u->pairs[0];
	return !is_alive(&p);
}

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define UDP_HEADER 8

// parse_peer finds the remote address and port of a UDP packet, and returns the length of
// its headers; 0 if it cannot be parsed.
static __always_inline __u32 parse_peer(struct __sk_buff *skb, int to, struct addr_port *peer)
{
	__u32 head[10], length;
	__u16 ports[2];

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, head, 20))
			return 0;
		length = (*(__u8 *)head & 0xf) * 4;
		set_v4(&peer->addr, to == TO_ENDPOINT ? head[4] : head[3]);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 0, head, 40) || ((__u8 *)head)[6] != UDP)
			return 0;
		length = 40;
		__builtin_memcpy(&peer->addr, to == TO_ENDPOINT ? &head[6] : &head[2], sizeof(peer->addr));
	} else {
		return 0;
	}
	if (bpf_skb_load_bytes(skb, length, ports, sizeof(ports)))
		return 0;
	peer->port = ports[to == TO_ENDPOINT];
	return length + UDP_HEADER;
}

// cut drops packets of UDP sockets to the endpoint that they are connected to, if it is
// gone; the sender gets EPERM. It is attached only while there are such sockets.
SEC("cgroup_skb/egress")
int cut(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : 0;
	struct addr_port peer = {};
	struct udp_pairs *u;
	__u64 cookie;

	if (!sk || sk->protocol != UDP)
		return 1;
	cookie = bpf_get_socket_cookie(skb);
	u = udp_socket(cookie, 0);
	if (!u || !lease_end() || !endpoint_gone(u) || !parse_peer(skb, TO_ENDPOINT, &peer) || !same_addr_port(&peer, &u->pairs[0].endpoint))
		return 1;
	count(CUT);
	return 0;
}

// count_datagram counts what UDP sockets send to endpoints and receive from them. With
// segmentation offload one skb is several packets.
static __always_inline void count_datagram(struct __sk_buff *skb, int to)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : 0;
	struct addr_port peer = {};
	struct udp_pairs *u;
	struct traffic_counts n = {};
	__u32 headers, at;

	if (!sk || sk->protocol != UDP)
		return;
	u = udp_socket(bpf_get_socket_cookie(skb), 0);
	if (!u || !u->used)
		return;
	headers = parse_peer(skb, to, &peer);
	if (!headers || headers > skb->len ||
	    (to == TO_ENDPOINT && has_flag(CUTTING) && endpoint_gone(u) && same_addr_port(&peer, &u->pairs[0].endpoint)))
		return;
	at = PAIRS;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && same_addr_port(&u->pairs[i].endpoint, &peer))
			at = i;
	if (at >= PAIRS)
		return;
	n.bytes[to] = skb->len - headers;
	n.packets[to] = skb->gso_segs ?: 1;
	add_counts(&u->pairs[at & (PAIRS - 1)], UDP, &n);
}

SEC("cgroup_skb/egress")
int sent(struct __sk_buff *skb)
{
	count_datagram(skb, TO_ENDPOINT);
	return 1;
}

SEC("cgroup_skb/ingress")
int received(struct __sk_buff *skb)
{
	count_datagram(skb, TO_CLIENT);
	return 1;
}

// A record of sources: the source address of a socket of a namespace.
struct source {
	__u64 cookie;
	struct addr addr;
	__u32 family;
	__u32 unused;
};

// sources writes the source addresses of the sockets in asked_sockets that are connected,
// each once.
SEC("iter/bpf_sk_storage_map")
int sources(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	__u32 *asked = ctx->value;
	struct source out = {};

	if (!sk || !asked || !*asked)
		return 0;
	out.cookie = sk->__sk_common.skc_net.net->net_cookie;
	if (sk->__sk_common.skc_family == AF_INET)
		set_v4(&out.addr, sk->__sk_common.skc_rcv_saddr);
	else
		BPF_CORE_READ_INTO(&out.addr, sk, __sk_common.skc_v6_rcv_saddr);
	if (is_zero(&out.addr) || (is_v4(&out.addr) && !out.addr.words[3]))
		return 0; // It has none yet.
	out.family = is_v4(&out.addr) ? 4 : 6;
	if (!bpf_seq_write(ctx->meta->seq, &out, sizeof(out)))
		*asked = 0;
	return 0;
}

// stale writes a record for each UDP socket that is connected to an endpoint that is gone.
SEC("iter/bpf_map_elem")
int stale(struct bpf_iter__bpf_map_elem *ctx)
{
	struct udp_set *set = ctx->value;
	__u32 found = 1;

	if (!set)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (set->cookies[i] && endpoint_gone(&set->sockets[i]))
			bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

// connected_tcp writes a record for each translated TCP socket that is open.
SEC("iter/bpf_map_elem")
int connected_tcp(struct bpf_iter__bpf_map_elem *ctx)
{
	struct tcp_set *set = ctx->value;
	__u32 found = 1;

	if (!set)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (set->cookies[i] && !(set->sockets[i].state & RELEASED))
			bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

// connected_udp writes a record for each UDP socket that is connected to an endpoint.
SEC("iter/bpf_map_elem")
int connected_udp(struct bpf_iter__bpf_map_elem *ctx)
{
	struct udp_set *set = ctx->value;
	__u32 found = 1;

	if (!set)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (set->cookies[i] && set->sockets[i].connected)
			bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

// free_lost frees the way of a closed TCP socket that ended while no program was attached
// to learn about it. Its counts are lost.
static __always_inline void free_lost(__u32 index, __u32 at)
{
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);

	if (set && !(__sync_fetch_and_or(&set->sockets[at & (WAYS - 1)].state, ENDED) & ENDED))
		free_way(set, at);
}

// flush adds the counts of the map recent to the map connections. It writes no record.
SEC("iter/bpf_map_elem")
int flush(struct bpf_iter__bpf_map_elem *ctx)
{
	__u32 *index = ctx->key, at;
	struct recent_count *r;
	__u64 word;

	if (!index)
		return 0;
	at = *index;
	r = bpf_map_lookup_elem(&recent, &at); // the iterator's own pointer does not allow atomic operations
	if (!r)
		return 0;
	word = r->word;
	if ((__u32)word && claim_recent(r, word))
		__sync_lock_test_and_set(&r->word, word >> 32 << 32);
	return 0;
}

// A record of live_tcp and live_udp: a translated socket that is open, or still has data in
// flight.
struct live_socket {
	struct addr_port frontend, endpoint;
	__u32 protocol;
	__u32 open;
	struct traffic_counts counts;
};

// live_tcp writes a record for each translated TCP socket.
SEC("iter/bpf_map_elem")
int live_tcp(struct bpf_iter__bpf_map_elem *ctx)
{
	struct live_socket out = {.protocol = TCP};
	struct tcp_set *set = ctx->value;
	__u32 *index = ctx->key;
	struct tcp_socket t;
	struct sock *sk;
	__u64 cookie;

	if (!set || !index)
		return 0;
	for (__u32 i = 0; i < WAYS; i++) {
		cookie = set->cookies[i];
		if (!cookie)
			continue;
		t = set->sockets[i];
		out.frontend = t.pair.frontend;
		out.endpoint = t.pair.endpoint;
		out.open = !(t.state & (RELEASED | ENDED));
		__builtin_memset(&out.counts, 0, sizeof(out.counts));
		if ((t.state & (METERED | ENDED)) == METERED) {
			read_counts(&t, &out.counts);
			barrier();
			sk = kernel_type(struct sock, t.sk);
			if (sk->__sk_common.skc_cookie.counter != cookie || sk->__sk_common.skc_state == BPF_TCP_CLOSE) {
				if (t.state & RELEASED)
					free_lost(*index, i);
				continue;
			}
		}
		bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	}
	return 0;
}

// live_udp writes a record for each pair of a UDP socket.
SEC("iter/bpf_map_elem")
int live_udp(struct bpf_iter__bpf_map_elem *ctx)
{
	struct live_socket out = {.protocol = UDP, .open = 1};
	struct udp_set *set = ctx->value;

	if (!set)
		return 0;
	for (int i = 0; i < WAYS; i++)
		for (int j = 0; j < PAIRS; j++) {
			if (!set->cookies[i] || j >= set->sockets[i].used)
				continue;
			out.frontend = set->sockets[i].pairs[j].frontend;
			out.endpoint = set->sockets[i].pairs[j].endpoint;
			bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
		}
	return 0;
}
