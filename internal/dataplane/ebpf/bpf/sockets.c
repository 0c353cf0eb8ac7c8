// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
//
// Programs at the sockets of a cgroup: a connection to a Service is made to one of
// its endpoints, where that is exactly what the nftables rules would come to. In
// doubt a socket is left as it is, and the rules translate its packets.

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

// What the programs see of the kernel's own structures.
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

// LOCAL_OUT and POST_ROUTING are the hooks that a namespace's own packets pass.
#define LOCAL_OUT 3
#define POST_ROUTING 4

// An address of either family; IPv4 as ::ffff:a.b.c.d.
struct addr {
	__u32 words[4];
};

struct at {
	struct addr addr;
	__be16 port;
};

// The keys and values of maps are whole words, without gaps.

struct frontend {
	struct addr addr; // zero: the node's addresses, of the family of protocol
	__be16 port;
	__u8 protocol;
	__u8 nodeport; // 0: an exact address; else 4 or 6
};

// Who the client is, as policy has it.
enum { ELSEWHERE, OUR_POD, THIS_NODE, ORIGINS };

// What to do for an origin.
enum { TRANSLATE = 1, LOCAL_LIST = 2 };

struct service {
	__u32 row;
	__u32 cluster, local; // how many endpoints there are, and on this node
	__u8 actions[4];      // by origin
	__u32 check;	 // over key and value; see matches
};

struct slot {
	__u32 row;
	__u32 number; // with LOCAL_BIT: of the list of this node
};

#define LOCAL_BIT (1u << 31)

// What an endpoint's address may be besides.
enum { HERE = 1, IN_SERVICE_RANGE = 2 };

struct endpoint {
	struct addr addr;
	__be16 port;
	__u16 flags;
	__u32 check;
};

// Endpoints that get nothing new but keep what they have.
struct member {
	__u32 row;
	struct addr addr;
	__be16 port;
	__u16 unused;
};

// Addresses of the node.
enum { TAKES_NODEPORTS = 1, POD_RANGE = 2, LOOPBACK = 4 };

struct space_key {
	__u64 cookie;
	__u32 family;
	__u32 unused;
};

struct space {
	__u64 cookie;
	__u64 until; // when to look again, in ns since boot
	struct addr source;
	__u32 origin; // UNKNOWN: leave its sockets
	__u32 check;
};

#define UNKNOWN ORIGINS

// How long to wait for an answer about a namespace before asking again.
#define ASK_AGAIN 50000000ULL

// How long UDP sockets keep their endpoints after the programs' permission has ended:
// the next daemon knows which are gone; if none comes, the rules do.
#define KEEP 60000000000ULL

struct settings {
	__u64 node;  // cookie of the node's namespace
	__u64 until; // when to leave all sockets unless the daemon says otherwise, in ns since boot
	__u32 flags;
	__u32 unused;
};

// What else the daemon says.
enum { COUNT_BYTES = 1, CUTTING = 2 };

// Where a socket was translated.
struct pair {
	struct at frontend;
	struct at endpoint;
	__u32 row;
	__u32 number;	  // of the slot
	__u64 generation; // when it was found alive
};

// route is a connection's frontend and endpoint, for those who want to know how
// many there were.
struct route {
	struct addr frontend, endpoint;
	__be16 frontend_port, endpoint_port;
	__u32 protocol;
};

// carried is what was counted of a route.
struct carried {
	__u64 connections;
	__u64 bytes[2], packets[2]; // by direction; without headers
};

enum { TO_ENDPOINT, TO_CLIENT };

// A TCP socket that was translated. What it carries the kernel counts; it is read there
// while the socket lives, and added to its route when that ends. That is later than
// when the socket is closed, as what was written may still be under way.
struct tcp_socket {
	struct pair pair;
	__u64 sk;    // its address, for as long as that has the same cookie
	__u32 first; // the number of its first sequence
	__u32 state;
};

enum { METERED = 1, RELEASED = 2, ENDED = 4 };

#define PAIRS 4

struct udp_pairs {
	__u32 used;
	__u32 connected; // the first is what the socket is connected to
	__u32 busy;	 // a thread changes them
	__u32 left;	 // to the rules, but for these
	struct pair pairs[PAIRS];
};

// What the maps say is kept for as long as they are of the same generation.

// What is to be done with sockets of a namespace that are not bound to an address.
struct decision {
	__u64 space;	    // its cookie
	struct frontend to; // the address and port that they want to go to
	__u32 row;
	struct addr source; // their own address, if they are a pod's
	__u64 generation;
	__u64 until; // when to look again, in ns since boot
	__u32 n;     // how many endpoints there are to choose from; 0: leave them
	__u32 first; // slot of them
	__u64 check;
};

// An endpoint that the rules send to as it is.
struct target {
	struct slot slot;
	__u64 generation;
	struct at at;
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
	__type(key, struct space_key);
	__type(value, struct space);
} spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

// A number that says which contents services, endpoints, members, node_addrs and settings
// have. While the daemon writes to one of them it is 0, and then one that never was before.
// Of spaces only the end of all knowledge counts as a change: what is known of one holds
// until a time.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} generation SEC(".maps");

// What is kept has one place, by its hash, and takes it from what was there.
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

// How many connections there were, and what they carried unless they still live. What
// is used least gives way.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct route);
	__type(value, struct carried);
} connections SEC(".maps");

// Sockets that were translated, by their cookies, for as long as they are open: a
// table of sets of a few. Cookies are not used again, and those that follow each
// other are neighbours, so nothing must be hashed, locked, allocated or fetched from
// far. A socket whose set is full is left. Memory of the socket itself (SK_STORAGE)
// costs more than all else here together.
#define WAYS 4
#define TCP_SETS (1 << 15)
#define UDP_SETS (1 << 13)

struct tcp_set {
	__u64 cookies[WAYS]; // 0: free
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

// Sockets whose source, once they are connected, is that of their namespace.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} asked_sockets SEC(".maps");

// Wakes the daemon: sockets were asked about.
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

// carried_by returns the counts of where a client wanted to go and where it is sent.
static __always_inline struct carried *carried_by(const struct pair *p, __u32 protocol)
{
	struct route key = {
		.frontend = p->frontend.addr,
		.endpoint = p->endpoint.addr,
		.frontend_port = p->frontend.port,
		.endpoint_port = p->endpoint.port,
		.protocol = protocol,
	};
	struct carried none = {}, *c = bpf_map_lookup_elem(&connections, &key);

	if (c)
		return c;
	bpf_map_update_elem(&connections, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&connections, &key);
}

__noinline int count_connection(const struct pair *p, __u32 protocol)
{
	struct carried *c = p ? carried_by(p, protocol) : 0;

	if (c)
		__sync_fetch_and_add(&c->connections, 1);
	return 0;
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

// matches reports whether a value that was read is that of the key: the kernel may
// use the memory of an entry for another while a program reads it.
#define matches(key, value) ((value)->check == check_of(key, value))

// sum adds up words, each times a number of its place: unlike mix, none waits for another.
static __always_inline __u64 sum(__u64 secret, const __u64 *words, int n)
{
	__u64 total = 0;

#pragma unroll
	for (int i = 0; i < n; i++)
		total += (words[i] ^ secret) * (0x9e3779b97f4a7c15ULL * (2 * i + 1));
	return total;
}

// kept_check is the check sum of what programs keep, where two may write to one place at
// once. Nobody outside knows a generation, so nobody can make what is of two fit.
#define kept_check(value) sum((value)->generation, (const __u64 *)(value), __builtin_offsetof(typeof(*(value)), check) / 8)

static __always_inline int is_v4(const struct addr *a)
{
	return a->words[0] == 0 && a->words[1] == 0 && a->words[2] == bpf_htonl(0xffff);
}

static __always_inline int is_zero(const struct addr *a)
{
	return !(a->words[0] | a->words[1] | a->words[2] | a->words[3]);
}

static __always_inline int same(const struct addr *a, const struct addr *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] && a->words[3] == b->words[3];
}

static __always_inline int same_at(const struct at *a, const struct at *b)
{
	return a->port == b->port && same(&a->addr, &b->addr);
}

static __always_inline void v4(struct addr *a, __u32 ip)
{
	a->words[0] = a->words[1] = 0;
	a->words[2] = bpf_htonl(0xffff);
	a->words[3] = ip;
}

// find looks for the frontend of an address and port, and says whether it is a
// NodePort.
static __always_inline int find(const struct frontend *to, struct service *out, __u32 *node_addr)
{
	struct frontend key = {.port = to->port, .protocol = to->protocol, .nodeport = is_v4(&to->addr) ? 4 : 6};
	struct service *s = bpf_map_lookup_elem(&services, to);
	__u32 *flags;

	if (s) {
		*out = *s;
		// An address that the node has itself may be another program's.
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

// ask has the daemon learn about a namespace, or look again, from a socket of it.
static __always_inline void ask(struct bpf_sock *sk, struct space_key *key, struct space *known, __u64 now)
{
	__u32 *asked;

	known->until = now + ASK_AGAIN;
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

// has_rules reports whether a hook leads to rules: a table's, a chain's or a program's.
// Those of the kernel itself have nothing of their own: connection tracking, SELinux
// and AppArmor, which are in every namespace.
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

// filtered reports whether a namespace has rules of its own for what it sends.
static __always_inline int filtered(struct bpf_sock_addr *ctx, int four)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct net *net = kern->sk->__sk_common.skc_net.net;

	if (four)
		return has_rules(net->nf.hooks_ipv4[LOCAL_OUT]) || has_rules(net->nf.hooks_ipv4[POST_ROUTING]);
	return has_rules(net->nf.hooks_ipv6[LOCAL_OUT]) || has_rules(net->nf.hooks_ipv6[POST_ROUTING]);
}

// pod returns the origin of a socket in a namespace that is not the node's, its
// address, and until when that holds.
static __always_inline __u32 pod(struct bpf_sock *sk, __u64 cookie, int four, const struct addr *bound, int ask_it, struct addr *source, __u64 *until)
{
	struct space_key key = {.cookie = cookie, .family = four ? 4 : 6};
	struct space *found = bpf_map_lookup_elem(&spaces, &key);
	__u64 now = bpf_ktime_get_coarse_ns();
	struct space known = {.cookie = cookie, .origin = UNKNOWN};

	*until = 0;
	if (found) {
		known = *found;
		if (!matches(&key, &known))
			return UNKNOWN;
	}
	if (known.until < now && ask_it && is_zero(bound))
		ask(sk, &key, &known, now);
	// Nothing is kept while the daemon is asked, or should be.
	if (known.until > now + ASK_AGAIN)
		*until = known.until;
	if (known.origin >= THIS_NODE || (!is_zero(bound) && !same(bound, &known.source)))
		return UNKNOWN;
	*source = known.source;
	return known.origin;
}

// origin returns who the client is, or UNKNOWN to leave its socket, a pod's address, and
// until when that holds.
static __always_inline __u32 origin(struct bpf_sock *sk, __u64 cookie, int four, const struct addr *bound, __u32 node_addr, int ask_it,
				    struct addr *source, __u64 *until)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	if (!s)
		return UNKNOWN;
	if (cookie != s->node) {
		if (node_addr & LOOPBACK) // its own
			return UNKNOWN;
		return pod(sk, cookie, four, bound, ask_it, source, until);
	}
	// To an address of its own the node speaks from that address.
	if (!is_zero(bound) || node_addr & POD_RANGE)
		return UNKNOWN;
	return THIS_NODE;
}

// claimed reports whether the rules would translate, or drop, what is sent to an
// endpoint itself.
static __always_inline int claimed(const struct endpoint *e, __u8 protocol)
{
	struct frontend key = {.addr = e->addr, .port = e->port, .protocol = protocol};
	__u32 *flags;

	if (e->flags & IN_SERVICE_RANGE || bpf_map_lookup_elem(&services, &key))
		return 1;
	if (!(e->flags & HERE))
		return 0;
	__builtin_memset(&key.addr, 0, sizeof(key.addr));
	key.nodeport = is_v4(&e->addr) ? 4 : 6;
	if (!bpf_map_lookup_elem(&services, &key))
		return 0;
	flags = bpf_map_lookup_elem(&node_addrs, &e->addr);
	return flags && *flags & TAKES_NODEPORTS;
}

// current_generation is to be read before the maps are: with a barrier, so that nothing
// of before a change is taken for what is after it.
static __always_inline __u64 current_generation(void)
{
	__u32 zero = 0;
	__u64 *g = bpf_map_lookup_elem(&generation, &zero);

	return g ? __sync_fetch_and_add(g, 0) : 0;
}

// is_current reports whether what was found in a generation is still so: nothing was
// written to the maps since, and nothing is being written.
static __always_inline int is_current(__u64 found)
{
	__u32 zero = 0;
	__u64 *g = bpf_map_lookup_elem(&generation, &zero);

	return g && found && *g == found;
}

// decide finds out what is to be done with a socket that wants to go somewhere.
__noinline int decide(struct bpf_sock_addr *ctx, const struct addr *bound, int ask_it, __u32 index, struct decision *d)
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
	if (find(&d->to, &s, &node_addr)) {
		from = origin(ctx->sk, d->space, is_v4(&d->to.addr), bound, node_addr, ask_it, &d->source, &d->until);
		action = from < ORIGINS ? s.actions[from & 3] : 0;
		if (action & TRANSLATE) {
			d->row = s.row;
			d->n = action & LOCAL_LIST ? s.local : s.cluster;
			d->first = action & LOCAL_LIST ? LOCAL_BIT : 0;
		}
	}
	if (is_zero(bound)) {
		d->check = kept_check(d);
		bpf_map_update_elem(&decisions, &index, d, BPF_ANY);
	}
	return 1;
}

// decision finds what was decided about sockets that are not bound, or decides.
static __always_inline int decision(struct bpf_sock_addr *ctx, const struct at *to, __u8 protocol, __u64 space, const struct addr *bound,
				    int ask_it, __u64 now, struct decision *d)
{
	const __u32 *words = to->addr.words;
	__u64 hashed[] = {words[0] ^ words[1] ^ words[2] ^ words[3], to->port | (__u64)protocol << 32, space};
	__u32 index = (sum(0, hashed, 3) >> 32) % DECISIONS;
	struct decision *place = bpf_map_lookup_elem(&decisions, &index);

	if (!place)
		return 0;
	if (is_zero(bound)) {
		*d = *place;
		if (d->space == space && same(&d->to.addr, &to->addr) && d->to.port == to->port && d->to.protocol == protocol &&
		    d->until > now && is_current(d->generation) && d->check == kept_check(d))
			return 1;
	}
	d->space = space;
	d->to.addr = to->addr;
	d->to.port = to->port;
	d->to.protocol = protocol;
	return decide(ctx, bound, ask_it, index, d);
}

// resolve finds the endpoint of a slot, unless the rules would not send to it as it is.
__noinline int resolve(struct target *t, __u32 protocol, __u32 index)
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
	if (!matches(&slot, &e) || claimed(&e, protocol))
		return 0;
	t->at.addr = e.addr;
	t->at.port = e.port;
	t->check = kept_check(t);
	bpf_map_update_elem(&targets, &index, t, BPF_ANY);
	return 1;
}

// target finds the endpoint of a slot that was found before, or resolves it.
static __always_inline int target(const struct slot *slot, __u32 protocol, struct target *t)
{
	__u64 hashed[] = {slot->row, slot->number};
	__u32 index = (sum(0, hashed, 2) >> 32) % TARGETS;
	struct target *place = bpf_map_lookup_elem(&targets, &index);

	if (!place)
		return 0;
	*t = *place;
	if (t->slot.row == slot->row && t->slot.number == slot->number && is_current(t->generation) && t->check == kept_check(t))
		return 1;
	t->slot = *slot;
	return resolve(t, protocol, index);
}

// What choose may find.
enum { NOTHING, ENDPOINT, ITSELF };

// choose finds an endpoint for a new connection to the frontend of a pair. A pod that
// draws itself is to be left to the rules, which hide it from itself.
__noinline int choose(struct bpf_sock_addr *ctx, __u32 protocol, const struct addr *bound, int ask_it, struct pair *out)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	__u64 now = bpf_ktime_get_coarse_ns(), space;
	struct bpf_sock *sk = ctx->sk;
	struct decision d = {};
	struct slot slot;
	struct target t;

	// What a socket's device or mark does to its way is not known.
	if (!s || s->until < now || !sk || sk->bound_dev_if || sk->mark || !out || !bound)
		return NOTHING;
	space = kern->sk->__sk_common.skc_net.net->net_cookie;
	if (!decision(ctx, &out->frontend, protocol, space, bound, ask_it, now, &d) || !d.n)
		return NOTHING;
	if (space != s->node && filtered(ctx, is_v4(&out->frontend.addr)))
		return NOTHING;
	slot.row = d.row;
	slot.number = d.first | (d.n > 1 ? bpf_get_prandom_u32() % d.n : 0);
	if (!target(&slot, protocol, &t))
		return NOTHING;
	if (same(&d.source, &t.at.addr))
		return ITSELF;
	out->endpoint = t.at;
	out->row = slot.row;
	out->number = slot.number;
	out->generation = d.generation == t.generation ? t.generation : 0;
	return ENDPOINT;
}

// holds reports whether a slot has an endpoint.
static __always_inline int holds(struct slot *slot, const struct at *endpoint)
{
	struct endpoint *found = bpf_map_lookup_elem(&endpoints, slot);
	struct endpoint e;

	if (!found)
		return 0;
	e = *found;
	return matches(slot, &e) && e.port == endpoint->port && same(&e.addr, &endpoint->addr);
}

struct search {
	struct pair *pair;
	struct slot slot;
	int found;
};

static int look(__u32 i, struct search *s)
{
	struct endpoint *e;

	s->slot.number = (s->pair->number & LOCAL_BIT) | i;
	e = bpf_map_lookup_elem(&endpoints, &s->slot);
	if (!e)
		return 1; // Slots have no gaps.
	if (e->port == s->pair->endpoint.port && same(&e->addr, &s->pair->endpoint.addr)) {
		s->pair->number = s->slot.number;
		s->found = 1;
		return 1;
	}
	return 0;
}

#define MAX_SLOTS (1 << 16)

// served reports whether the frontend of a pair is that of its row, and its
// endpoint one of it, in the same slot or in another, or keeps what it has.
__noinline int served(struct pair *p)
{
	struct frontend to = {};
	struct service now;
	struct slot slot;
	struct member m = {};
	struct search s = {};
	__u32 flags;

	if (!p)
		return 0;
	to.addr = p->frontend.addr;
	to.port = p->frontend.port;
	to.protocol = UDP;
	if (!find(&to, &now, &flags) || now.row != p->row)
		return 0;
	slot.row = p->row;
	slot.number = p->number;
	if (holds(&slot, &p->endpoint))
		return 1;
	m.row = p->row;
	m.addr = p->endpoint.addr;
	m.port = p->endpoint.port;
	if (bpf_map_lookup_elem(&members, &m))
		return 1;
	s.pair = p;
	s.slot.row = p->row;
	bpf_loop(MAX_SLOTS, look, &s, 0);
	return s.found;
}

// alive reports whether a pair is still served.
static __always_inline int alive(struct pair *p)
{
	__u64 found = p->generation, now;

	if (is_current(found))
		return 1;
	now = current_generation();
	if (!served(p))
		return 0;
	__sync_val_compare_and_swap(&p->generation, found, now); // unless a thread has put another pair there
	return 1;
}

// cookie_of returns a socket's cookie, or 0 if nobody has asked for it yet.
static __always_inline __u64 cookie_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);

	return kern->sk->__sk_common.skc_cookie.counter;
}

// remembered reports whether the kernel tells when a socket is closed: not if it is
// one of its own, such as those that are part of an MPTCP connection, whose peer is
// asked for by another socket.
static __always_inline int remembered(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);

	return !BPF_CORE_READ_BITFIELD(kern->sk, sk_kern_sock);
}

static __always_inline __u32 way_of(const __u64 *cookies, __u64 cookie)
{
#pragma unroll
	for (__u32 i = 0; i < WAYS; i++)
		if (cookies[i] == cookie)
			return i;
	return WAYS;
}

// claim returns a socket's place in its set, or WAYS if there is none, or another
// thread is about to take one for it.
static __always_inline __u32 claim(__u64 *cookies, __u64 cookie)
{
	__u32 at = way_of(cookies, cookie);

	if (at < WAYS)
		return at;
#pragma unroll
	for (__u32 i = 0; i < WAYS; i++) {
		if (at < WAYS || cookies[i] || __sync_val_compare_and_swap(&cookies[i], 0, cookie))
			continue;
		at = i;
	}
	if (at < WAYS && way_of(cookies, cookie) != at) {
		cookies[at & (WAYS - 1)] = 0;
		return WAYS;
	}
	return at;
}

// tcp_socket and udp_socket return what is known of a socket, or null. With make it
// is a place for it.
static __always_inline struct tcp_socket *tcp_socket(__u64 cookie, int make)
{
	__u32 index = cookie / WAYS % TCP_SETS;
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);
	__u32 at;

	if (!set || !cookie)
		return 0;
	at = make ? claim(set->cookies, cookie) : way_of(set->cookies, cookie);
	return at < WAYS ? &set->sockets[at & (WAYS - 1)] : 0;
}

static __always_inline struct udp_pairs *udp_socket(__u64 cookie, int make)
{
	__u32 index = cookie / WAYS % UDP_SETS;
	struct udp_set *set = bpf_map_lookup_elem(&udp_sockets, &index);
	__u32 at;

	if (!set || !cookie)
		return 0;
	at = make ? claim(set->cookies, cookie) : way_of(set->cookies, cookie);
	return at < WAYS ? &set->sockets[at & (WAYS - 1)] : 0;
}

// forget has a socket be what it was made, for as long as it is not translated again.
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
		u->used = u->connected = u->left = 0;
}

// connect makes a socket connect to an endpoint, and forgets what it was before.
static __always_inline int connect(struct bpf_sock_addr *ctx, struct at *to, const struct addr *bound)
{
	__u32 protocol = ctx->protocol;
	struct pair p = {.frontend = *to};
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct udp_pairs *u;
	struct tcp_socket *t;
	__u64 cookie;

	if (!ctx->sk || (protocol != TCP && protocol != UDP) || !remembered(ctx))
		return 0;
	if (choose(ctx, protocol, bound, 1, &p) != ENDPOINT) {
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

// permission returns until when programs may act; 0: the maps are not to be trusted.
static __always_inline __u64 permission(void)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s ? s->until : 0;
}

// keep remembers a pair, in its place or in a new one.
static __always_inline int keep(struct udp_pairs *u, __u32 at, const struct pair *p)
{
	// Of two frontends with one endpoint, answers could be either's.
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && i != at && same_at(&u->pairs[i].endpoint, &p->endpoint))
			return 0;
	if (at < PAIRS) {
		u->pairs[at & (PAIRS - 1)] = *p;
		return 1;
	}
	at = u->used;
	if (at >= PAIRS)
		return 0;
	u->pairs[at & (PAIRS - 1)] = *p;
	__sync_fetch_and_add(&u->used, 1); // after that
	return 1;
}

// send sends a datagram that is told its destination to an endpoint: the one of the
// last datagram to that frontend, if it is still there. A socket that is connected takes
// answers of no other, so there it is the same in any case, and cut refuses it.
static __always_inline int send(struct bpf_sock_addr *ctx, struct at *to, const struct addr *bound)
{
	struct udp_pairs *u;
	struct pair p = {.frontend = *to};
	__u32 at = PAIRS;
	__u64 until;
	int kept, chosen;

	if (!ctx->sk || ctx->protocol != UDP)
		return 0;
	u = udp_socket(cookie_of(ctx), 0);
	// A connected socket takes answers of its peer only. The kernel names the peer of an
	// IPv6 socket in each datagram if that has an IPv4 address.
	if (ctx->sk->state == BPF_TCP_ESTABLISHED && !(u && u->used && same_at(&u->pairs[0].frontend, to)))
		return 0;
	if (u) {
		if (u->connected && ctx->sk->state != BPF_TCP_ESTABLISHED)
			u->connected = 0; // It was disconnected, which nobody is told.
#pragma unroll
		for (int i = 0; i < PAIRS; i++)
			if (i < u->used && same_at(&u->pairs[i].frontend, to))
				at = i;
		if (at == 0 && u->connected) {
			*to = u->pairs[0].endpoint;
			return 1;
		}
		until = permission();
		if (at < PAIRS && until && until + KEEP > bpf_ktime_get_coarse_ns() && alive(&u->pairs[at & (PAIRS - 1)])) {
			*to = u->pairs[at & (PAIRS - 1)].endpoint;
			return 1;
		}
	}
	if (u && u->left)
		return 0;
	chosen = choose(ctx, UDP, bound, 0, &p);
	if (chosen == NOTHING)
		return 0; // From now on the rules translate it, and answers come from the frontend.
	if (!u && remembered(ctx))
		u = udp_socket(bpf_get_socket_cookie(ctx), 1);
	// Servers that talk to each other from their own ports could not tell what one of them
	// says by itself from an answer.
	if (u && (chosen == ITSELF || ctx->sk->src_port == bpf_ntohs(p.endpoint.port)))
		u->left = 1; // or it would go elsewhere with its next datagram
	if (!u || u->left)
		return 0;
	if (__sync_val_compare_and_swap(&u->busy, 0, 1))
		return 0; // Another thread sends the first datagram of its own.
	kept = keep(u, at, &p);
	__sync_lock_test_and_set(&u->busy, 0);
	if (!kept)
		return 0;
	*to = p.endpoint;
	count(TRANSLATED_UDP);
	count_connection(&p, UDP);
	return 1;
}

// answer tells an answer's source as the address that was asked.
static __always_inline int answer(struct bpf_sock_addr *ctx, struct at *from)
{
	struct udp_pairs *u = udp_socket(cookie_of(ctx), 0);

	if (!u)
		return 0;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && same_at(&u->pairs[i].endpoint, from)) {
			*from = u->pairs[i].frontend;
			return 1;
		}
	return 0;
}

// peer tells the address that a socket was to be connected to.
static __always_inline int peer(struct bpf_sock_addr *ctx, struct at *at)
{
	__u64 cookie = cookie_of(ctx);
	struct udp_pairs *u;
	struct tcp_socket *t;

	if (ctx->protocol == TCP) {
		t = tcp_socket(cookie, 0);
		if (!t || !same_at(&t->pair.endpoint, at))
			return 0;
		*at = t->pair.frontend;
		return 1;
	}
	u = udp_socket(cookie, 0);
	if (!u || !u->connected || !same_at(&u->pairs[0].endpoint, at))
		return 0;
	*at = u->pairs[0].frontend;
	return 1;
}

static __always_inline void read4(struct bpf_sock_addr *ctx, struct at *at)
{
	v4(&at->addr, ctx->user_ip4);
	at->port = ctx->user_port;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct at *at)
{
	ctx->user_ip4 = at->addr.words[3];
	ctx->user_port = at->port;
}

static __always_inline void read6(struct bpf_sock_addr *ctx, struct at *at)
{
	at->addr.words[0] = ctx->user_ip6[0];
	at->addr.words[1] = ctx->user_ip6[1];
	at->addr.words[2] = ctx->user_ip6[2];
	at->addr.words[3] = ctx->user_ip6[3];
	at->port = ctx->user_port;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct at *at)
{
	ctx->user_ip6[0] = at->addr.words[0];
	ctx->user_ip6[1] = at->addr.words[1];
	ctx->user_ip6[2] = at->addr.words[2];
	ctx->user_ip6[3] = at->addr.words[3];
	ctx->user_port = at->port;
}

// bound4 and bound6 return the address that a socket is bound to, or zero.
static __always_inline void bound4(struct bpf_sock *sk, struct addr *a)
{
	__builtin_memset(a, 0, sizeof(*a));
	if (sk && sk->src_ip4)
		v4(a, sk->src_ip4);
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
	struct at to = {};

	read4(ctx, &to);
	bound4(ctx->sk, &bound);
	if (connect(ctx, &to, &bound))
		write4(ctx, &to);
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct addr bound;
	struct at to = {};

	read6(ctx, &to);
	bound6(ctx->sk, &bound);
	if (connect(ctx, &to, &bound))
		write6(ctx, &to);
	return 1;
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct addr bound = {};
	struct at to = {};

	read4(ctx, &to);
	if (ctx->msg_src_ip4)
		v4(&bound, ctx->msg_src_ip4);
	if (send(ctx, &to, &bound))
		write4(ctx, &to);
	return 1;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct addr bound = {};
	struct at to = {};

	read6(ctx, &to);
	bound.words[0] = ctx->msg_src_ip6[0];
	bound.words[1] = ctx->msg_src_ip6[1];
	bound.words[2] = ctx->msg_src_ip6[2];
	bound.words[3] = ctx->msg_src_ip6[3];
	if (send(ctx, &to, &bound))
		write6(ctx, &to);
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	struct at from = {};

	read4(ctx, &from);
	if (answer(ctx, &from))
		write4(ctx, &from);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct at from = {};

	read6(ctx, &from);
	if (answer(ctx, &from))
		write6(ctx, &from);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct at at = {};

	read4(ctx, &at);
	if (peer(ctx, &at))
		write4(ctx, &at);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct at at = {};

	read6(ctx, &at);
	if (peer(ctx, &at))
		write6(ctx, &at);
	return 1;
}

// says reports whether the daemon says something.
static __always_inline int says(__u32 flag)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings, &zero);

	return s && s->flags & flag;
}

#define kernel_type(type, address) ((type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(type)))

// sent returns how many bytes a socket has sent, each counted once. The number of the
// next sequence has 32 bits of that; the rest follows from what was acknowledged, which
// is less by what is under way. SYN and FIN have numbers, too. The order of reading
// matters where nobody holds the socket: it comes to too little, not to too much.
static __always_inline __u64 sent_by(struct sock *sk, struct tcp_sock *tp, __u32 first)
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

// received_by returns how many bytes a socket has received. A FIN was counted.
static __always_inline __u64 received_by(struct sock *sk, struct tcp_sock *tp)
{
	__u64 n = tp->bytes_received;

	barrier();
	if (n && sk->__sk_common.skc_flags & 1UL << bpf_core_enum_value(enum sock_flags, SOCK_DONE))
		n--;
	return n;
}

// read_socket reads what a socket has carried so far.
static __always_inline void read_socket(const struct tcp_socket *t, struct carried *out)
{
	struct sock *sk = kernel_type(struct sock, t->sk);
	struct tcp_sock *tp = kernel_type(struct tcp_sock, t->sk);

	out->bytes[TO_ENDPOINT] = sent_by(sk, tp, t->first);
	out->bytes[TO_CLIENT] = received_by(sk, tp);
	out->packets[TO_ENDPOINT] = tp->segs_out;
	out->packets[TO_CLIENT] = tp->segs_in;
}

static __always_inline void count_carried(const struct pair *p, __u32 protocol, const struct carried *n)
{
	struct carried *c = carried_by(p, protocol);

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

// end counts a socket that carries nothing any more, unless that was done, and
// returns its state of before. Who reads counts of routes and then sockets sees it in
// one of them at most.
static __always_inline __u32 end(struct tcp_socket *t)
{
	__u32 was = __sync_fetch_and_or(&t->state, ENDED);
	struct carried c = {};

	if (was & ENDED || !(was & METERED))
		return was;
	read_socket(t, &c);
	count_carried(&t->pair, TCP, &c);
	return was;
}

// vacate gives a socket's place to another one.
static __always_inline void vacate(struct tcp_set *set, __u32 at)
{
	__builtin_memset(&set->sockets[at & (WAYS - 1)], 0, sizeof(set->sockets[0]));
	__sync_lock_test_and_set(&set->cookies[at & (WAYS - 1)], 0); // after that
}

// release_tcp gives the place of a socket that is closed to another one: at once, or
// when it has ended, which of the two comes last.
static __always_inline void release_tcp(__u64 cookie)
{
	__u32 index = cookie / WAYS % TCP_SETS;
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);
	__u32 at = set ? way_of(set->cookies, cookie) : WAYS;
	struct tcp_socket *t;
	__u32 was;

	if (!set || at >= WAYS)
		return;
	t = &set->sockets[at & (WAYS - 1)];
	if (t->state & METERED) {
		was = __sync_fetch_and_or(&t->state, RELEASED);
		if (!(was & ENDED)) {
			// Another program may have said that nobody wants to hear of its end.
			if (says(COUNT_BYTES) && kernel_type(struct tcp_sock, t->sk)->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_STATE_CB_FLAG)
				return;
			if (end(t) & ENDED)
				return;
		}
	}
	vacate(set, at);
}

// ends learns when a socket that was translated ends, and counts what it has carried.
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
	at = set ? way_of(set->cookies, cookie) : WAYS;
	if (!set || at >= WAYS)
		return 1;
	t = &set->sockets[at & (WAYS - 1)];
	if (op == BPF_SOCK_OPS_STATE_CB) {
		if ((end(t) & (RELEASED | ENDED)) == RELEASED)
			vacate(set, at);
		return 1;
	}
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && t->sk && !t->state) {
		t->first = kernel_type(struct tcp_sock, t->sk)->write_seq;
		__sync_fetch_and_or(&t->state, METERED);
	}
	// Programs of a pod may have said something else when it was connected.
	if (t->state & METERED)
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 1;
}

// release has a socket that is closed be forgotten.
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
		at = u ? way_of(u->cookies, cookie) : WAYS;
		if (u && at < WAYS) {
			s = &u->sockets[at & (WAYS - 1)];
			s->used = s->connected = s->left = 0;
			__sync_lock_test_and_set(&u->cookies[at & (WAYS - 1)], 0);
		}
	}
	return 1;
}

// gone reports whether a socket is connected to an endpoint that is gone.
static __always_inline int gone(const struct udp_pairs *u)
{
	struct pair p;

	if (!u->connected)
		return 0;
	p = u->pairs[0];
	return !alive(&p);
}

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define UDP_HEADER 8

// peer_of finds who sent a datagram, or is to get it, and returns the length of all
// headers; 0 for packets that are something else.
static __always_inline __u32 peer_of(struct __sk_buff *skb, int to, struct at *peer)
{
	__u32 head[10], length;
	__u16 ports[2];

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, head, 20))
			return 0;
		length = (*(__u8 *)head & 0xf) * 4;
		v4(&peer->addr, to == TO_ENDPOINT ? head[4] : head[3]);
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

// cut drops what sockets send to the endpoint that they are connected to, if it is
// gone. It is attached only while there are some.
SEC("cgroup_skb/egress")
int cut(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : 0;
	struct at peer = {};
	struct udp_pairs *u;
	__u64 cookie;

	if (!sk || sk->protocol != UDP)
		return 1;
	cookie = bpf_get_socket_cookie(skb);
	u = udp_socket(cookie, 0);
	if (!u || !permission() || !gone(u) || !peer_of(skb, TO_ENDPOINT, &peer) || !same_at(&peer, &u->pairs[0].endpoint))
		return 1;
	count(CUT);
	return 0;
}

// count_datagram counts what UDP sockets send to endpoints and receive from them. One
// packet may be several that a link is to make of it.
static __always_inline void count_datagram(struct __sk_buff *skb, int to)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : 0;
	struct at peer = {};
	struct udp_pairs *u;
	struct carried n = {};
	__u32 headers, at;

	if (!sk || sk->protocol != UDP)
		return;
	u = udp_socket(bpf_get_socket_cookie(skb), 0);
	if (!u || !u->used)
		return;
	headers = peer_of(skb, to, &peer);
	if (!headers || headers > skb->len || (to == TO_ENDPOINT && says(CUTTING) && gone(u) && same_at(&peer, &u->pairs[0].endpoint)))
		return;
	at = PAIRS;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < u->used && same_at(&u->pairs[i].endpoint, &peer))
			at = i;
	if (at >= PAIRS)
		return;
	n.bytes[to] = skb->len - headers;
	n.packets[to] = skb->gso_segs ?: 1;
	count_carried(&u->pairs[at & (PAIRS - 1)], UDP, &n);
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

// An answer about a namespace, as read from sockets.
struct source {
	__u64 cookie;
	struct addr addr;
	__u32 family;
	__u32 unused;
};

// sources tells what the sockets that were asked about say of their namespaces.
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
		v4(&out.addr, sk->__sk_common.skc_rcv_saddr);
	else
		BPF_CORE_READ_INTO(&out.addr, sk, __sk_common.skc_v6_rcv_saddr);
	if (is_zero(&out.addr) || (is_v4(&out.addr) && !out.addr.words[3]))
		return 0; // not yet
	out.family = is_v4(&out.addr) ? 4 : 6;
	if (!bpf_seq_write(ctx->meta->seq, &out, sizeof(out)))
		*asked = 0;
	return 0;
}

// stale tells of the UDP sockets that are connected to an endpoint that is gone.
SEC("iter/bpf_map_elem")
int stale(struct bpf_iter__bpf_map_elem *ctx)
{
	struct udp_set *set = ctx->value;
	__u32 found = 1;

	if (!set)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (set->cookies[i] && gone(&set->sockets[i]))
			bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

// told_tcp tells of each TCP socket that was translated.
SEC("iter/bpf_map_elem")
int told_tcp(struct bpf_iter__bpf_map_elem *ctx)
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

// told_udp tells of each UDP socket that is connected to an endpoint.
SEC("iter/bpf_map_elem")
int told_udp(struct bpf_iter__bpf_map_elem *ctx)
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

// abandon gives away the place of a socket whose end programs were not told of.
static __always_inline void abandon(__u32 index, __u32 at)
{
	struct tcp_set *set = bpf_map_lookup_elem(&tcp_sockets, &index);

	if (set && !(__sync_fetch_and_or(&set->sockets[at & (WAYS - 1)].state, ENDED) & ENDED))
		vacate(set, at);
}

// A socket that was translated: it is open, or still carries something.
struct live_socket {
	struct at frontend, endpoint;
	__u32 protocol;
	__u32 open;
	struct carried carried;
};

// live_tcp tells of each TCP socket that was translated.
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
		__builtin_memset(&out.carried, 0, sizeof(out.carried));
		if ((t.state & (METERED | ENDED)) == METERED) {
			read_socket(&t, &out.carried);
			barrier();
			sk = kernel_type(struct sock, t.sk);
			if (sk->__sk_common.skc_cookie.counter != cookie || sk->__sk_common.skc_state == BPF_TCP_CLOSE) {
				if (t.state & RELEASED)
					abandon(*index, i);
				continue;
			}
		}
		bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	}
	return 0;
}

// live_udp tells of each pair of a UDP socket.
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
