/* vsh: a verbs shell. Reads one command a line and drives the kernel's RDMA
 * device through libibverbs, so that a test can make every kind of request by
 * hand. After any lines of detail (wc, gid, hex, event) each command ends with
 * one line that starts with "ok" or "err". Type "help" for the commands.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX 64

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_port_attr port;
static int sgid_fixed = -1;

struct buf { char name[32]; uint8_t *p; size_t len; struct ibv_mr *mr; };
struct qp { char name[32]; struct ibv_qp *qp; enum ibv_qp_type type; uint32_t qkey; };
struct ah { char name[32]; struct ibv_ah *ah; };
struct mw { char name[32]; struct ibv_mw *mw; };
/* What holds the interface's membership in multicast groups: rxe itself joins none. */
static int member4 = -1, member6 = -1;
static struct buf bufs[MAX];
static struct qp qps[MAX];
static struct ah ahs[MAX];
static struct mw mws[MAX];

static char *word[64];
static int words;

static void ok(const char *f, ...)
{
	va_list a;
	va_start(a, f);
	fputs("ok ", stdout);
	vprintf(f, a);
	putchar('\n');
	va_end(a);
}

static void err(const char *f, ...)
{
	va_list a;
	va_start(a, f);
	fputs("err ", stdout);
	vprintf(f, a);
	putchar('\n');
	va_end(a);
}

static const char *opt(const char *key)
{
	size_t n = strlen(key);
	for (int i = 1; i < words; i++)
		if (!strncmp(word[i], key, n) && word[i][n] == '=')
			return word[i] + n + 1;
	return NULL;
}

static uint64_t num(const char *key, uint64_t dflt)
{
	const char *v = opt(key);
	return v ? strtoull(v, NULL, 0) : dflt;
}

/* Positional argument I (the words without '='). */
static const char *arg(int i)
{
	for (int k = 1; k < words; k++)
		if (!strchr(word[k], '=') && i-- == 0)
			return word[k];
	return NULL;
}

#define FIND(T, tab) \
static struct T *find_##T(const char *n) \
{ \
	for (int i = 0; n && i < MAX; i++) \
		if (!strcmp(tab[i].name, n)) \
			return &tab[i]; \
	return NULL; \
} \
static struct T *new_##T(const char *n) \
{ \
	if (!n || !*n || strlen(n) > 31 || find_##T(n)) \
		return NULL; \
	for (int i = 0; i < MAX; i++) \
		if (!tab[i].name[0]) { \
			strcpy(tab[i].name, n); \
			return &tab[i]; \
		} \
	return NULL; \
}
FIND(buf, bufs)
FIND(qp, qps)
FIND(ah, ahs)
FIND(mw, mws)

static int parse_gid(const char *s, union ibv_gid *g)
{
	struct in_addr v4;
	if (!s)
		return 0;
	if (inet_pton(AF_INET, s, &v4) == 1) {
		memset(g, 0, sizeof *g);
		g->raw[10] = g->raw[11] = 0xff;
		memcpy(g->raw + 12, &v4, 4);
		return 1;
	}
	return inet_pton(AF_INET6, s, g) == 1;
}

static int is_v4(const union ibv_gid *g)
{
	static const uint8_t pre[12] = {[10] = 0xff, [11] = 0xff};
	return !memcmp(g->raw, pre, 12);
}

static int is_ll(const union ibv_gid *g)
{
	return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* The source GID to use towards D: the one asked for, else the first RoCE v2
 * one of the same kind (IPv4, IPv6, IPv6 link-local). */
static int sgid_for(const union ibv_gid *d)
{
	if (opt("sgid"))
		return num("sgid", 0);
	if (sgid_fixed >= 0)
		return sgid_fixed;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry e;
		if (ibv_query_gid_ex(ctx, 1, i, &e, 0) || e.gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		if (is_v4(&e.gid) == is_v4(d) && is_ll(&e.gid) == is_ll(d))
			return i;
	}
	return -1;
}

static int set_ah(struct ibv_ah_attr *a)
{
	union ibv_gid d;
	memset(a, 0, sizeof *a);
	if (!parse_gid(opt("gid"), &d)) {
		err("gid=ADDRESS is missing or wrong");
		return 0;
	}
	int s = sgid_for(&d);
	if (s < 0) {
		err("no local GID of that kind");
		return 0;
	}
	a->is_global = 1;
	a->port_num = 1;
	a->grh.dgid = d;
	a->grh.sgid_index = s;
	a->grh.hop_limit = num("hop", 64);
	a->grh.traffic_class = num("tc", 0);
	a->grh.flow_label = num("fl", 0);
	a->sl = num("sl", 0);
	return 1;
}

static int mtu_enum(int bytes)
{
	return bytes >= 4096 ? IBV_MTU_4096 : bytes >= 2048 ? IBV_MTU_2048 : bytes >= 1024 ? IBV_MTU_1024 :
	       bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

static int access_bits(const char *s)
{
	int a = 0;
	for (; s && *s; s++)
		a |= *s == 'l' ? IBV_ACCESS_LOCAL_WRITE : *s == 'r' ? IBV_ACCESS_REMOTE_READ :
		     *s == 'w' ? IBV_ACCESS_REMOTE_WRITE : *s == 'a' ? IBV_ACCESS_REMOTE_ATOMIC :
		     *s == 'b' ? IBV_ACCESS_MW_BIND : 0;
	return a;
}

static void cmd_dev(void)
{
	const char *name = arg(0) ? arg(0) : "rxe0";
	struct ibv_device **l = ibv_get_device_list(NULL);
	if (ctx) {
		err("already open");
		return;
	}
	for (int i = 0; l && l[i]; i++)
		if (!strcmp(ibv_get_device_name(l[i]), name))
			ctx = ibv_open_device(l[i]);
	if (!ctx || ibv_query_port(ctx, 1, &port)) {
		err("cannot open %s: %s", name, strerror(errno));
		return;
	}
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 4096, NULL, NULL, 0);
	sgid_fixed = opt("sgid") ? (int)num("sgid", 0) : -1;
	if (!pd || !cq) {
		err("pd or cq: %s", strerror(errno));
		return;
	}
	ok("dev %s state=%d mtu=%d", name, port.state, 128 << port.active_mtu);
}

static void cmd_gids(void)
{
	char s[64];
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry e;
		if (ibv_query_gid_ex(ctx, 1, i, &e, 0))
			continue;
		printf("gid index=%d type=%s addr=%s\n", i, e.gid_type == IBV_GID_TYPE_ROCE_V2 ? "v2" : "v1",
		       inet_ntop(AF_INET6, &e.gid, s, sizeof s));
	}
	ok("gids");
}

static void cmd_buf(void)
{
	size_t len = arg(1) ? strtoull(arg(1), NULL, 0) : 0;
	struct buf *b = new_buf(arg(0));
	if (!b) {
		err("bad or used name");
		return;
	}
	b->len = len;
	if (posix_memalign((void **)&b->p, 4096, len ? len : 1))
		exit(1);
	memset(b->p, 0, len);
	b->mr = ibv_reg_mr(pd, b->p, len, access_bits(opt("access") ? opt("access") : "lrwab"));
	if (!b->mr) {
		err("ibv_reg_mr: %s", strerror(errno));
		free(b->p);
		b->name[0] = 0;
		return;
	}
	ok("buf %s addr=0x%" PRIxPTR " lkey=0x%x rkey=0x%x len=%zu", b->name, (uintptr_t)b->p, b->mr->lkey, b->mr->rkey, len);
}

static void cmd_qp(void)
{
	const char *t = arg(1);
	struct qp *q;
	enum ibv_qp_type type = t && !strcmp(t, "ud") ? IBV_QPT_UD : t && !strcmp(t, "uc") ? IBV_QPT_UC : IBV_QPT_RC;
	if (!(q = new_qp(arg(0)))) {
		err("bad or used name");
		return;
	}
	struct ibv_qp_init_attr a = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = {.max_send_wr = num("sq", 64), .max_recv_wr = num("rq", 64), .max_send_sge = 2, .max_recv_sge = 2,
			.max_inline_data = num("inline", 64)},
	};
	q->type = type;
	q->qp = ibv_create_qp(pd, &a);
	if (!q->qp) {
		err("ibv_create_qp: %s", strerror(errno));
		q->name[0] = 0;
		return;
	}
	ok("qp %s qpn=%u", q->name, q->qp->qp_num);
}

/* RESET to RTS in one go. For RC and UC: qpn= gid= and the two first PSNs. */
static void cmd_connect(void)
{
	struct qp *q = find_qp(arg(0));
	struct ibv_qp_attr a;
	int m, r;
	if (!q) {
		err("no such qp");
		return;
	}
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	a.qkey = q->qkey = num("qkey", 0x11111111);
	a.qp_access_flags = access_bits(opt("access") ? opt("access") : "lrwa");
	m = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (q->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	if ((r = ibv_modify_qp(q->qp, &a, m))) {
		err("to INIT: %s", strerror(r));
		return;
	}
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	m = IBV_QP_STATE;
	if (q->type != IBV_QPT_UD) {
		if (!set_ah(&a.ah_attr))
			return;
		a.path_mtu = mtu_enum(num("mtu", 1024));
		a.dest_qp_num = num("qpn", 0);
		a.rq_psn = num("rpsn", 0);
		m |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (q->type == IBV_QPT_RC) {
		a.max_dest_rd_atomic = num("drd", 16);
		a.min_rnr_timer = num("rnrtimer", 12);
		m |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	if ((r = ibv_modify_qp(q->qp, &a, m))) {
		err("to RTR: %s", strerror(r));
		return;
	}
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = num("spsn", 0);
	m = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (q->type == IBV_QPT_RC) {
		a.timeout = num("timeout", 14);
		a.retry_cnt = num("retry", 7);
		a.rnr_retry = num("rnr", 7);
		a.max_rd_atomic = num("rd", 16);
		m |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if ((r = ibv_modify_qp(q->qp, &a, m))) {
		err("to RTS: %s", strerror(r));
		return;
	}
	ok("connect %s", q->name);
}

static void cmd_modify(void)
{
	struct qp *q = find_qp(arg(0));
	const char *s = opt("state");
	struct ibv_qp_attr a = {.qp_state = s && !strcmp(s, "reset") ? IBV_QPS_RESET : s && !strcmp(s, "sqd") ? IBV_QPS_SQD :
				s && !strcmp(s, "rts") ? IBV_QPS_RTS : IBV_QPS_ERR};
	if (!q || !s) {
		err("usage: modify QP state=err|reset|sqd|rts");
		return;
	}
	int r = ibv_modify_qp(q->qp, &a, IBV_QP_STATE);
	if (r)
		err("modify: %s", strerror(r));
	else
		ok("modify %s", q->name);
}

static void cmd_query(void)
{
	static const char *const st[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN"};
	struct qp *q = find_qp(arg(0));
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	if (!q || ibv_query_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU, &i)) {
		err("query");
		return;
	}
	ok("query %s state=%s sq_psn=%u rq_psn=%u dest=%u mtu=%d", q->name, st[a.qp_state & 7], a.sq_psn, a.rq_psn,
	   a.dest_qp_num, 128 << a.path_mtu);
}

static void cmd_ah(void)
{
	struct ibv_ah_attr a;
	if (!set_ah(&a))
		return;
	struct ah *h = new_ah(arg(0));
	if (!h) {
		err("bad or used name");
		return;
	}
	if (!(h->ah = ibv_create_ah(pd, &a))) {
		err("ibv_create_ah: %s", strerror(errno));
		h->name[0] = 0;
		return;
	}
	ok("ah %s", h->name);
}

/* Attaches a UD QP to a group. rxe (rxe_mcast.c) takes what the IP layer lets through to UDP port 4791, so the interface joins too,
 * as rdma_cm does for its programs (cma.c, cma_iboe_join_multicast). */
static void cmd_join(int leave)
{
	struct qp *q = find_qp(arg(0));
	union ibv_gid g;
	if (!q || !parse_gid(opt("gid"), &g)) {
		err("usage: join|leave QP gid=GROUP");
		return;
	}
	int r = leave ? ibv_detach_mcast(q->qp, &g, 0) : ibv_attach_mcast(q->qp, &g, 0);
	if (r) {
		err("multicast group: %s", strerror(r));
		return;
	}
	unsigned dev = if_nametoindex(opt("dev") ? opt("dev") : "eth0");
	/* A group that the socket is in already is no failure: several QPs may be. The last word on leaving is the shell's end. */
	if (!leave && is_v4(&g)) {
		struct ip_mreqn m = {.imr_ifindex = dev};
		memcpy(&m.imr_multiaddr, g.raw + 12, 4);
		if (member4 < 0)
			member4 = socket(AF_INET, SOCK_DGRAM, 0);
		r = setsockopt(member4, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m);
	} else if (!leave) {
		struct ipv6_mreq m = {.ipv6mr_interface = dev};
		memcpy(&m.ipv6mr_multiaddr, g.raw, 16);
		if (member6 < 0)
			member6 = socket(AF_INET6, SOCK_DGRAM, 0);
		r = setsockopt(member6, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof m);
	}
	if (r && errno != EADDRINUSE)
		err("membership: %s", strerror(errno));
	else
		ok("%s %s", leave ? "leave" : "join", q->name);
}

static int get_sge(struct qp **q, struct buf **b, struct ibv_sge *s, int atomic)
{
	*q = find_qp(arg(0));
	if (!*q) {
		err("no such qp");
		return -1;
	}
	if (!arg(1))
		return 0; /* no data at all */
	*b = find_buf(arg(1));
	size_t off = arg(2) ? strtoull(arg(2), NULL, 0) : 0;
	size_t len = atomic ? 8 : arg(3) ? strtoull(arg(3), NULL, 0) : 0;
	if (!*b || off > (*b)->len || len > (*b)->len - off) {
		err("no such buf, or out of its range");
		return -1;
	}
	s->addr = (uintptr_t)(*b)->p + off;
	s->length = len;
	s->lkey = num("lkey", (*b)->mr->lkey);
	return 1;
}

static void cmd_recv(void)
{
	struct qp *q;
	struct buf *b;
	struct ibv_sge s;
	struct ibv_recv_wr *bad, w = {.wr_id = num("id", 0), .sg_list = &s};
	int n = get_sge(&q, &b, &s, 0);
	if (n < 0)
		return;
	w.num_sge = n;
	for (int k = num("n", 1), r; k > 0; k--)
		if ((r = ibv_post_recv(q->qp, &w, &bad))) {
			err("ibv_post_recv: %s", strerror(r));
			return;
		}
	ok("recv %s", q->name);
}

static void cmd_post(const char *c)
{
	struct qp *q;
	struct buf *b = NULL;
	struct ibv_sge s;
	struct ibv_send_wr *bad, w = {.wr_id = num("id", 0), .sg_list = &s};
	int atomic = !strcmp(c, "cas") || !strcmp(c, "fadd");
	int n = get_sge(&q, &b, &s, atomic);
	if (n < 0)
		return;
	w.num_sge = n;
	if (!strcmp(c, "send"))
		w.opcode = opt("imm") ? IBV_WR_SEND_WITH_IMM : opt("inv") ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND;
	else if (!strcmp(c, "write"))
		w.opcode = opt("imm") ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	else if (!strcmp(c, "read"))
		w.opcode = IBV_WR_RDMA_READ;
	else if (!strcmp(c, "cas"))
		w.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	else if (!strcmp(c, "fadd"))
		w.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	else if (!strcmp(c, "linv"))
		w.opcode = IBV_WR_LOCAL_INV;
	if (opt("imm"))
		w.imm_data = htobe32(num("imm", 0));
	else if (opt("inv"))
		w.invalidate_rkey = num("inv", 0);
	if (num("sig", 1))
		w.send_flags |= IBV_SEND_SIGNALED;
	if (num("se", 0))
		w.send_flags |= IBV_SEND_SOLICITED;
	if (num("fence", 0))
		w.send_flags |= IBV_SEND_FENCE;
	if (num("inline", 0))
		w.send_flags |= IBV_SEND_INLINE;
	if (atomic) {
		w.wr.atomic.remote_addr = num("raddr", 0);
		w.wr.atomic.rkey = num("rkey", 0);
		w.wr.atomic.compare_add = num(w.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? "cmp" : "add", 0);
		w.wr.atomic.swap = num("swap", 0);
	} else if (q->type == IBV_QPT_UD) {
		struct ah *h = find_ah(opt("ah"));
		if (!h) {
			err("ah=NAME is missing");
			return;
		}
		w.wr.ud.ah = h->ah;
		w.wr.ud.remote_qpn = num("qpn", 0);
		w.wr.ud.remote_qkey = num("qkey", q->qkey);
	} else {
		w.wr.rdma.remote_addr = num("raddr", 0);
		w.wr.rdma.rkey = num("rkey", 0);
	}
	for (int k = num("n", 1), r; k > 0; k--)
		if ((r = ibv_post_send(q->qp, &w, &bad))) {
			err("ibv_post_send: %s", strerror(r));
			return;
		}
	ok("%s %s", c, q->name);
}

static void cmd_mw(void)
{
	struct mw *m = new_mw(arg(0));
	if (!m || !(m->mw = ibv_alloc_mw(pd, num("type", 2) == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2))) {
		if (m)
			m->name[0] = 0;
		err("mw: %s", strerror(errno));
		return;
	}
	ok("mw %s rkey=0x%x", m->name, m->mw->rkey);
}

static void cmd_bind(void)
{
	struct qp *q = find_qp(arg(0));
	struct mw *m = find_mw(arg(1));
	struct buf *b = find_buf(arg(2));
	if (!q || !m || !b || !arg(4)) {
		err("usage: bind QP MW BUF OFF LEN [access=rwa]");
		return;
	}
	struct ibv_send_wr *bad, w = {.wr_id = num("id", 0), .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	w.bind_mw.mw = m->mw;
	w.bind_mw.rkey = ibv_inc_rkey(m->mw->rkey);
	w.bind_mw.bind_info.mr = b->mr;
	w.bind_mw.bind_info.addr = (uintptr_t)b->p + strtoull(arg(3), NULL, 0);
	w.bind_mw.bind_info.length = strtoull(arg(4), NULL, 0);
	w.bind_mw.bind_info.mw_access_flags = access_bits(opt("access") ? opt("access") : "rwa");
	int r = ibv_post_send(q->qp, &w, &bad);
	if (r) {
		err("bind: %s", strerror(r));
		return;
	}
	m->mw->rkey = w.bind_mw.rkey;
	ok("bind %s rkey=0x%x addr=0x%" PRIx64, m->name, w.bind_mw.rkey, (uint64_t)w.bind_mw.bind_info.addr);
}

static void cmd_poll(void)
{
	static const char *const ops[] = {"SEND", "WRITE", "READ", "CAS", "FADD", "BIND", "LINV"};
	int want = arg(0) ? atoi(arg(0)) : 1, got = 0;
	struct timespec t0, t;
	int64_t ms = num("ms", 5000);
	clock_gettime(CLOCK_MONOTONIC, &t0);
	while (got < want) {
		struct ibv_wc w;
		int n = ibv_poll_cq(cq, 1, &w);
		if (n < 0) {
			err("ibv_poll_cq");
			return;
		}
		if (n) {
			char op[32];
			snprintf(op, sizeof op, "%s", w.status ? "-" : w.opcode == IBV_WC_RECV ? "RECV" :
				 w.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? "RECV_WRITE" : w.opcode < 7 ? ops[w.opcode] : "?");
			printf("wc id=%" PRIu64 " status=%d (%s) op=%s len=%u qpn=%u", w.wr_id, w.status,
			       ibv_wc_status_str(w.status), op, w.byte_len, w.qp_num);
			if (!w.status && w.wc_flags & IBV_WC_WITH_IMM)
				printf(" imm=0x%x", be32toh(w.imm_data));
			if (!w.status && w.wc_flags & IBV_WC_WITH_INV)
				printf(" inv=0x%x", w.invalidated_rkey);
			if (!w.status && w.opcode & IBV_WC_RECV)
				printf(" src=%u grh=%d flags=0x%x ex=0x%x", w.src_qp, !!(w.wc_flags & IBV_WC_GRH), w.wc_flags,
				       w.invalidated_rkey);
			putchar('\n');
			got++;
			continue;
		}
		clock_gettime(CLOCK_MONOTONIC, &t);
		if ((t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 >= ms)
			break;
		usleep(500);
	}
	if (got < want)
		err("poll %d of %d: timed out", got, want);
	else
		ok("poll %d", got);
}

static void cmd_async(void)
{
	struct pollfd f = {ctx->async_fd, POLLIN, 0};
	struct ibv_async_event e;
	int n = 0;
	while (poll(&f, 1, n ? 0 : (int)num("ms", 1000)) > 0 && !ibv_get_async_event(ctx, &e)) {
		printf("event type=%d (%s)\n", e.event_type, ibv_event_type_str(e.event_type));
		ibv_ack_async_event(&e);
		n++;
	}
	ok("async %d", n);
}

static uint8_t pattern(uint64_t seed, uint64_t i)
{
	return seed + i + (i >> 8) * 7 + (i >> 16) * 13;
}

static void cmd_mem(const char *c)
{
	struct buf *b = find_buf(arg(0));
	size_t off = arg(1) ? strtoull(arg(1), NULL, 0) : 0;
	int puts_ = !strcmp(c, "put");
	size_t len = puts_ ? (arg(2) ? strlen(arg(2)) / 2 : 0) : arg(2) ? strtoull(arg(2), NULL, 0) : b ? b->len - off : 0;
	if (!b || off > b->len || len > b->len - off) {
		err("no such buf, or out of its range");
		return;
	}
	uint8_t *p = b->p + off;
	uint64_t seed = num("seed", 0);
	if (!strcmp(c, "fill")) {
		for (size_t i = 0; i < len; i++)
			p[i] = pattern(seed, i);
	} else if (!strcmp(c, "check")) {
		for (size_t i = 0; i < len; i++)
			if (p[i] != pattern(seed, i)) {
				err("check: byte %zu is 0x%02x, not 0x%02x", i, p[i], pattern(seed, i));
				return;
			}
	} else if (puts_) {
		for (size_t i = 0; i < len; i++) {
			char h[3] = {arg(2)[2 * i], arg(2)[2 * i + 1], 0};
			p[i] = strtoul(h, NULL, 16);
		}
	} else {
		fputs("hex ", stdout);
		for (size_t i = 0; i < len; i++)
			printf("%02x", p[i]);
		putchar('\n');
	}
	ok("%s %s %zu", c, b->name, len);
}

static void cmd_destroy(void)
{
	const char *n = arg(0);
	struct qp *q = find_qp(n);
	struct buf *b = find_buf(n);
	struct ah *h = find_ah(n);
	struct mw *m = find_mw(n);
	int r = 0;
	if (q && !(r = ibv_destroy_qp(q->qp)))
		memset(q, 0, sizeof *q);
	else if (!q && b && !(r = ibv_dereg_mr(b->mr))) {
		free(b->p);
		memset(b, 0, sizeof *b);
	} else if (!q && !b && h && !(r = ibv_destroy_ah(h->ah)))
		memset(h, 0, sizeof *h);
	else if (!q && !b && !h && m && !(r = ibv_dealloc_mw(m->mw)))
		memset(m, 0, sizeof *m);
	else {
		err("destroy: %s", r ? strerror(r) : "no such thing");
		return;
	}
	ok("destroy");
}

static const char help[] =
	"# dev [NAME=rxe0] [sgid=I]                 open the device (first command)\n"
	"# gids                                     list its GIDs\n"
	"# buf NAME LEN [access=lrwab]              allocate and register memory\n"
	"# fill|check BUF [OFF] [LEN] [seed=N]      byte i is (N + i + (i>>8)*7 + (i>>16)*13) & 255\n"
	"# put BUF OFF HEX | hex BUF [OFF] [LEN]\n"
	"# qp NAME rc|uc|ud [sq=] [rq=] [inline=]\n"
	"# connect QP qpn= gid=ADDR [spsn=] [rpsn=] [mtu=1024] [timeout=14] [retry=7] [rnr=7] [rnrtimer=12]\n"
	"#            [rd=16] [drd=16] [access=lrwa] [sgid=I] [hop=64] [tc=] [fl=] [qkey=]   (UD: only spsn= qkey=)\n"
	"# ah NAME gid=ADDR                         address handle for UD\n"
	"# join|leave QP gid=GROUP [dev=eth0]       a UD QP and a multicast group; send to one: qpn=0xffffff\n"
	"# recv QP [BUF OFF LEN] [id=] [n=]\n"
	"# send QP [BUF OFF LEN] [imm=|inv=RKEY] [se=1] [inline=1] [sig=0] [id=] [n=]   (UD: ah= qpn= [qkey=])\n"
	"# write QP [BUF OFF LEN] raddr= rkey= [imm=] ...     read QP BUF OFF LEN raddr= rkey= [fence=1]\n"
	"# cas QP BUF OFF raddr= rkey= cmp= swap=   fadd QP BUF OFF raddr= rkey= add=\n"
	"# mw NAME [type=2]   bind QP MW BUF OFF LEN [access=rwa]   linv QP inv=RKEY\n"
	"# poll [N=1] [ms=5000]                     wait for N completions (all QPs share one CQ)\n"
	"# query QP | modify QP state=err|reset|sqd|rts | async [ms=] | destroy NAME | sleep MS | quit\n";

int main(void)
{
	static char line[1 << 20];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		words = 0;
		for (char *s = strtok(line, " \t\r\n"); s && words < 64; s = strtok(NULL, " \t\r\n"))
			word[words++] = s;
		if (!words || word[0][0] == '#')
			continue;
		const char *c = word[0];
		if (!strcmp(c, "quit"))
			break;
		else if (!strcmp(c, "help"))
			fputs(help, stdout), ok("help");
		else if (!strcmp(c, "sleep"))
			usleep((arg(0) ? atoi(arg(0)) : 0) * 1000), ok("sleep");
		else if (!strcmp(c, "dev"))
			cmd_dev();
		else if (!ctx)
			err("no device is open");
		else if (!strcmp(c, "gids"))
			cmd_gids();
		else if (!strcmp(c, "buf"))
			cmd_buf();
		else if (!strcmp(c, "qp"))
			cmd_qp();
		else if (!strcmp(c, "connect"))
			cmd_connect();
		else if (!strcmp(c, "modify"))
			cmd_modify();
		else if (!strcmp(c, "query"))
			cmd_query();
		else if (!strcmp(c, "ah"))
			cmd_ah();
		else if (!strcmp(c, "join") || !strcmp(c, "leave"))
			cmd_join(c[0] == 'l');
		else if (!strcmp(c, "recv"))
			cmd_recv();
		else if (!strcmp(c, "send") || !strcmp(c, "write") || !strcmp(c, "read") || !strcmp(c, "cas") ||
			 !strcmp(c, "fadd") || !strcmp(c, "linv"))
			cmd_post(c);
		else if (!strcmp(c, "mw"))
			cmd_mw();
		else if (!strcmp(c, "bind"))
			cmd_bind();
		else if (!strcmp(c, "poll"))
			cmd_poll();
		else if (!strcmp(c, "async"))
			cmd_async();
		else if (!strcmp(c, "fill") || !strcmp(c, "check") || !strcmp(c, "put") || !strcmp(c, "hex"))
			cmd_mem(c);
		else if (!strcmp(c, "destroy"))
			cmd_destroy();
		else
			err("unknown command %s", c);
	}
	return 0;
}
