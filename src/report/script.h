/* script.h - the script of the report: a click on the head of a column of
 * table.sortable sorts its rows, by numbers where they begin with one.  Without
 * it the page has all the same.  No "<" and no "&", so that the page stays
 * well-formed XML. */
#ifndef FORGE_SCRIPT_H
#define FORGE_SCRIPT_H

static const char page_script[] =
    "document.querySelectorAll('table.sortable').forEach(t=>{"
    "const heads=[...t.tHead.rows[0].cells],body=t.tBodies[0];"
    "heads.forEach((th,i)=>{if(!th.textContent)return;"
    "const b=document.createElement('button');"
    "b.append(...th.childNodes);th.append(b);"
    "b.onclick=()=>{"
    "const was=th.getAttribute('aria-sort'),words=!th.classList.contains('n');"
    "const up=was?(was=='descending'?1:-1):words?1:-1;"
    "const text=r=>r.cells[i].textContent,key=r=>parseFloat(text(r));"
    "const rows=[...body.rows].sort((r,s)=>{"
    "if(words)return up*text(r).localeCompare(text(s),'en',{numeric:true});"
    "const x=key(r),y=key(s);"
    "return isNaN(x)?(isNaN(y)?0:1):isNaN(y)?-1:up*(x-y)});"
    "heads.forEach(o=>o.removeAttribute('aria-sort'));"
    "th.setAttribute('aria-sort',up==1?'ascending':'descending');"
    "body.append(...rows)}})})";

#endif
