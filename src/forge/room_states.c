/* room_states.c - where the states of all tokens are: see request.h.  The rules are
 * those of calib/store.c and model/mixture.c. */
#include "arch/device_bytes.h"
#include "common/io/region.h"
#include "forge/request.h"

/* Rows of all tokens, in a region of the host. */
static void keep(struct room *room, double bytes)
{
    if (bytes > REGION_MEMORY)
        room->states_disk += bytes;
    else
        room->states_memory += bytes;
}

struct states {
    double tokens;
    int streams; /* that there are */
    bool both;
};

static struct states states_of(const struct request *r)
{
    const struct job *j = &r->j;
    bool both = j->propagate == PROPAGATE_BOTH;

    return (struct states){ j->method == METHOD_RTN ?
                                0 :
                                (double)j->sequences * (double)j->seqlen,
                            both ? 2 : 1, both };
}

static void on_host(const struct request *r, const struct states *s,
                    struct room *room)
{
    const struct plan *p = &r->plan;

    keep(room, s->tokens * p->act_bytes[s->both]);
    keep(room, s->tokens * p->companion_bytes[s->both]);
    keep(room, s->tokens * p->expert_mid_bytes);
    for (int i = 0; i < s->streams; i++) {
        keep(room, s->tokens * p->x_bytes);
        keep(room, s->tokens * p->expert_in_bytes);
        keep(room, s->tokens * p->expert_sum_bytes);
    }
}

/* Take bytes of GPU memory, or pinned memory of the host. */
static void place(struct room *room, double *left, double bytes)
{
    if (bytes <= *left)
        *left -= bytes;
    else
        room->states_memory += bytes;
}

static double sums_bytes(const struct request *r, const struct states *s)
{
    double all = s->tokens * r->plan.expert_sum_bytes;

    return r->j.parts > 1 ? s->streams * all :
                            expert_sums_bytes(all, s->streams);
}

/* Activations: in one pipe they are lent, if there is room for a batch
 * (calib/lending.h); else those that do not fit are on the host. */
static void place_activations(const struct request *r, const struct states *s,
                              struct room *room, double spare, double *left)
{
    const struct plan *p = &r->plan;
    bool lent = r->j.parts <= 1;
    double act = p->act_bytes[s->both], more = p->companion_bytes[s->both];
    double row = act + (lent ? 1 : 2) * more;
    double batch = BATCH_ROWS + (double)r->j.seqlen, rows, all;

    if (lent && spare >= batch * row) {
        *left -= lent_room(s->tokens * row,
                           s->tokens * (s->streams * p->expert_in_bytes +
                                        p->expert_pass_bytes) +
                               sums_bytes(r, s),
                           s->tokens * p->expert_lent_bytes[s->both], spare);
        return;
    }
    rows = spare / row - batch; /* whole batches */
    rows = rows < 0 ? 0 : rows < s->tokens ? rows : s->tokens;
    *left -= rows * row;
    all = s->tokens - rows;
    keep(room, all * act);
    keep(room, all * more);
}

/* Beside what the other tools need.  x is in regions first, until the device has
 * it. */
static void on_device(const struct request *r, const struct states *s,
                      struct room *room)
{
    const struct plan *p = &r->plan;
    const double limit = (double)r->j.gpu_memory;
    double left = (double)r->gpu.facts.free - gpu_room_others(r), spare;
    struct room start = { 0 };

    if (limit > 0 && limit < left)
        left = limit;
    for (int i = 0; i < s->streams; i++) {
        keep(&start, s->tokens * p->x_bytes);
        place(room, &left, s->tokens * p->x_bytes);
    }
    spare = (limit > 0 || gpu_room_states(r) > 0 ? left : left / 2) -
            gpu_room_layer(r);
    place_activations(r, s, room, spare, &left);
    for (int i = 0; i < s->streams; i++)
        place(room, &left, s->tokens * p->expert_in_bytes);
    place(room, &left, sums_bytes(r, s));
    if (sums_bytes(r, s) < s->streams * s->tokens * p->expert_sum_bytes)
        room->states_memory += p->expert_codes_bytes;
    place(room, &left, s->tokens * p->expert_pass_bytes);
    if (start.states_disk > room->states_disk)
        room->states_disk = start.states_disk;
    if (start.states_memory > room->states_memory)
        room->states_memory = start.states_memory;
}

static bool has_device(const struct request *r)
{
    const struct device_facts *f = &r->gpu.facts;

    return *f->stamp && !r->plan.device_lacks &&
           gpu_room_layer(r) <= (double)f->room;
}

void room_states(const struct request *r, struct room *room)
{
    const struct plan *p = &r->plan;
    const struct states s = states_of(r);

    room->states_disk = room->states_memory = 0;
    if (has_device(r))
        on_device(r, &s, room);
    else
        on_host(r, &s, room);
    /* experts and weights of each choice, slots of the tokens, twice */
    room->states_memory += s.streams * s.tokens * (double)p->top_k * 24;
}

bool room_states_large(const struct request *r)
{
    struct room room;

    room_states(r, &room);
    return room.states_disk > 1 << 30;
}
